"""Which token is which patch, on a model whose head finds a patch by arithmetic and on random families."""

import math
import runpy
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from headwise.errors import ModelError
from headwise.inspection.detail import Detail
from headwise.inspection.images.inspect_image import inspect_image, to_picture, to_png, vision_part
from headwise.inspection.images.patches import PatchPlaces
from headwise.nn.c3tr import C3TR
from headwise.nn.vision import PatchEncoder
from headwise.png import read_png

transformers = pytest.importorskip("transformers")
SEEING = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "seeing_vit.py")))
TINY = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 7,
    "image_size": 12,
    "patch_size": 4,
}
NO_FEED_FORWARD = {name: value for name, value in TINY.items() if name != "intermediate_size"}


def build(name, **keywords):
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**keywords)
    return getattr(transformers, f"{name}Model")(config).eval()


def pixels(height=12, width=12, batch=1):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(5))


def maps_of(inspection):
    return {
        (map_.layer, map_.head): (torch.tensor(list(map_.weights)).view(map_.num_queries, -1) / 255.0) ** 2
        for map_ in inspection.maps
    }


def test_the_head_that_finds_the_red_patch_is_seen_to_look_at_it():
    inspection = inspect_image(
        SEEING.make_model(), {"pixel_values": SEEING.make_pixels()}, mean=SEEING.MEAN, std=SEEING.STD
    )
    grid = inspection.patches
    assert (grid.rows, grid.columns, grid.first) == (3, 5, 1)
    red = grid.first + SEEING.RED[0] * grid.columns + SEEING.RED[1]
    assert inspection.tokens[red] == "r1 c3" and inspection.tokens[0] == "[CLS]"
    maps = maps_of(inspection)
    assert maps[0, 0].argmax(dim=-1).tolist() == [red] * 16
    torch.testing.assert_close(maps[0, 0][:, red], torch.ones(16), rtol=0, atol=1e-4)
    assert inspection.heads[0].max_weight == pytest.approx(1 / (1 + 15 * math.exp(-6 * math.sqrt(11))), abs=1e-6)
    # from the patch (row, column) to (1, 3), over the 15 patches; those who read all alike: over all pairs
    to_red = [math.hypot(row - 1, column - 3) for row in range(3) for column in range(5)]
    assert inspection.heads[0].patch_distance == pytest.approx(sum(to_red) / 15, abs=1e-6)
    places = [(row, column) for row in range(3) for column in range(5)]
    pairs = [math.dist(one, other) for one in places for other in places]
    assert inspection.heads[1].patch_distance == pytest.approx(sum(pairs) / 225, abs=1e-6)
    assert any(f"{sum(pairs) / 225:.1f} patches away on average" in note for note in inspection.notes)


def test_the_picture_is_the_image_as_it_was_before_it_was_normalised():
    inspection = inspect_image(
        SEEING.make_model(), {"pixel_values": SEEING.make_pixels()}, mean=SEEING.MEAN, std=SEEING.STD
    )
    picture = read_png(inspection.patches.picture)
    shown = torch.tensor(list(picture.values)).view(picture.height, picture.width, 3).permute(2, 0, 1)
    assert torch.equal(shown, SEEING.make_picture().long())


def test_a_picture_of_unknown_scale_runs_from_its_darkest_to_its_brightest_number():
    assert to_picture(torch.tensor([[[-3.0, 1.0], [0.0, 5.0]]]))[..., 0].tolist() == [[0, 128], [96, 255]]
    assert to_picture(torch.full((3, 2, 2), 7.0)).sum() == 0
    assert to_picture(torch.zeros(5, 2, 3)).shape == (2, 3, 3)
    assert to_picture(torch.rand(3, 1000, 500)).shape == (768, 384, 3)
    assert to_png(torch.zeros(2, 3, 3, dtype=torch.uint8))[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("name", "keywords", "size", "grid", "others"),
    [
        ("ViT", {**TINY, "image_size": [12, 20]}, (12, 20), (3, 5, 1), ["[CLS]"]),
        ("DeiT", TINY, (12, 12), (3, 3, 2), ["[CLS]", "[DIST]"]),
        ("Dinov2", NO_FEED_FORWARD, (20, 12), (5, 3, 1), ["[CLS]"]),
        (
            "Dinov2WithRegisters",
            {**NO_FEED_FORWARD, "num_register_tokens": 2},
            (12, 20),
            (3, 5, 3),
            ["[CLS]", "register 0", "register 1"],
        ),
        ("DINOv3ViT", {**TINY, "num_register_tokens": 2}, (8, 12), (2, 3, 3), ["[CLS]", "register 0", "register 1"]),
        ("Beit", TINY, (12, 12), (3, 3, 1), ["[CLS]"]),
        ("SiglipVision", TINY, (12, 12), (3, 3, 0), []),
        ("CLIPVision", TINY, (12, 12), (3, 3, 1), ["[CLS]"]),
        ("IJepa", TINY, (12, 12), (3, 3, 0), []),
        ("VitDet", NO_FEED_FORWARD, (12, 12), (3, 3, 0), []),
        (
            "Yolos",
            {**TINY, "image_size": [12, 20], "num_detection_tokens": 2},
            (12, 20),
            (3, 5, 1),
            ["[CLS]", "detection 0", "detection 1"],
        ),
    ],
)
def test_patches_of_hugging_face_models_are_found_and_other_tokens_named(name, keywords, size, grid, others):
    inspection = inspect_image(build(name, **keywords), {"pixel_values": pixels(*size)})
    rows, columns, first = grid
    found = inspection.patches
    assert (found.rows, found.columns, found.first) == grid
    assert list(inspection.tokens[first : first + rows * columns]) == [
        f"r{row} c{column}" for row in range(rows) for column in range(columns)
    ]
    assert [*inspection.tokens[:first], *inspection.tokens[first + rows * columns :]] == others
    assert (len(inspection.maps), inspection.maps[0].num_queries) == (6, len(inspection.tokens))
    picture = read_png(found.picture)
    assert (picture.height, picture.width) == size


@pytest.mark.parametrize("heads_size", [(13, 23), (12, 20)])
def test_our_own_patch_encoder_reads_whole_patches_only(heads_size):
    model = PatchEncoder(4, 8, 2, 2)
    inspection = inspect_image(model, {"image": pixels(*heads_size, batch=2)})
    assert (inspection.patches.rows, inspection.patches.columns, inspection.patches.first) == (3, 5, 0)
    picture = read_png(inspection.patches.picture)
    assert (picture.height, picture.width) == (12, 20)
    assert "Maps and the picture are of the first of 2 images." in inspection.notes


def test_statistics_are_over_all_images_and_maps_of_the_first():
    model = build("ViT", **{**TINY, "image_size": [12, 20]})
    both = pixels(12, 20, batch=2)
    together = inspect_image(model, {"pixel_values": both})
    alone = [inspect_image(model, {"pixel_values": both[at : at + 1]}) for at in (0, 1)]
    assert (together.num_texts, together.num_tokens) == (2, 32)
    for head, first, second in zip(together.heads, *(each.heads for each in alone), strict=True):
        for name in ("entropy", "patch_distance", "sink_mass"):
            mean = (getattr(first, name) + getattr(second, name)) / 2
            assert getattr(head, name) == pytest.approx(mean, rel=1e-6)  # batches of one and two round differently
    assert together.patches == alone[0].patches
    assert "Maps and the picture are of the first of 2 images." in together.notes


@pytest.mark.parametrize("compatible", [False, True])
def test_a_c3tr_shows_the_places_of_its_feature_map_alone_and_behind_a_backbone(compatible):
    torch.manual_seed(2)
    block = C3TR(6, 8, num_heads=2, compatible=compatible)
    alone = inspect_image(block, {"feature_map": torch.randn(1, 6, 3, 5)})
    behind = inspect_image(nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.SiLU(), block), (pixels(6, 10),))
    for inspection in (alone, behind):
        assert (inspection.patches.rows, inspection.patches.columns, inspection.patches.first) == (3, 5, 0)
        assert len(inspection.tokens) == 15
    picture = read_png(behind.patches.picture)
    assert (picture.height, picture.width) == (6, 10)  # places behind several convolutions cover the whole image


def test_patch_distance_is_what_a_loop_over_queries_and_patches_gives():
    model = build("Dinov2WithRegisters", **{**NO_FEED_FORWARD, "num_register_tokens": 2}, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # so that heads choose
    image = pixels(12, 20)
    inspection = inspect_image(model, {"pixel_values": image})
    with torch.no_grad():
        layers = model(pixel_values=image, output_attentions=True).attentions
    first, columns = 3, 5
    for head in inspection.heads:
        weights = layers[head.layer][0, head.head].tolist()
        means = []
        for query in range(15):
            distance = mass = 0.0
            for key in range(15):
                weight = weights[first + query][first + key]
                place, other = divmod(query, columns), divmod(key, columns)
                distance += weight * math.hypot(place[0] - other[0], place[1] - other[1])
                mass += weight
            means.append(distance / mass)
        # weights are float32, each off by some eps of itself, in both paths
        assert head.patch_distance == pytest.approx(sum(means) / 15, rel=1e-5)


def test_models_whose_patches_are_hidden_shuffled_or_overlap_say_so_and_keep_their_statistics():
    class Shuffled(nn.Module):
        def __init__(self, kernel_size):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, kernel_size, stride=4, padding=(kernel_size - 4) // 2)
            self.norm = nn.LayerNorm(8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.shuffles = kernel_size == 4

        def forward(self, image):
            tokens = self.conv(image).flatten(2).transpose(1, 2)
            tokens = self.norm(tokens.flip(1) if self.shuffles else tokens)
            return self.attention(tokens, tokens, tokens)[0]

    for kernel_size in (4, 8):
        inspection = inspect_image(Shuffled(kernel_size), {"image": pixels(12, 20)})
        assert inspection.patches is None and len(inspection.heads) == 2 and len(inspection.tokens) == 15
        assert any("Tokens are not laid over the image: Shuffled must make one token" in n for n in inspection.notes)
        assert inspection.heads[0].patch_distance is None
    masked = inspect_image(build("ViTMAE", **TINY), {"pixel_values": pixels()})
    assert masked.patches is None
    assert any("ViTMAEModel attends to 3 tokens, fewer than the 3 x 3 patches" in note for note in masked.notes)


def test_windows_of_a_swin_are_refused_in_a_line():
    model = build("Swin", image_size=16, patch_size=2, embed_dim=12, depths=[1, 1], num_heads=[2, 3], window_size=4)
    with pytest.raises(ModelError, match=r"every layer must read all patches .* SwinModel attends in windows or at"):
        inspect_image(model, {"pixel_values": pixels(16, 16)})


def test_of_a_model_of_images_and_text_the_part_that_reads_images_is_taken():
    text = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 7}
    text |= {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 1}
    clip = build("CLIP", text_config=text, vision_config=TINY)
    inspection = inspect_image(clip, {"pixel_values": pixels()})
    assert inspection.patches.rows == 3 and len(inspection.heads) == 6
    assert inspection.notes[0] == "Of CLIPModel the part that reads images was looked at, CLIPVisionModel."
    plain = nn.Linear(2, 3)
    assert vision_part(plain) is plain
    bert = build("Bert", **{**text, "max_position_embeddings": 5})
    with pytest.raises(ModelError, match=r"an image is read by a model of images, .*; BertModel holds none: give"):
        vision_part(bert)


def test_of_too_many_tokens_the_heaviest_keys_are_kept_in_place_of_half_a_map():
    model, inputs = SEEING.make_model(), {"pixel_values": SEEING.make_pixels()}
    cut = inspect_image(model, inputs, max_map_tokens=15)
    assert cut.maps == () and len(cut.top_keys) == 3
    assert cut.top_keys[0].of_query(5)[0] == (9, pytest.approx(1.0, abs=1e-6))
    assert "Of the 16 tokens each query's 16 heaviest keys are kept, not maps." in cut.notes
    assert [each.num_queries for each in cut.overviews] == [16] * 3
    few = inspect_image(model, inputs, max_map_tokens=15, max_top_keys=50)
    assert few.top_keys[0].num_keys == 3  # 50 of 16 queries
    assert inspect_image(model, inputs, max_map_tokens=15, detail=Detail(top_keys=2)).top_keys[0].num_keys == 2
    none = inspect_image(model, inputs, max_map_tokens=0)
    assert none.maps == () and none.top_keys == () and none.patches is not None


def test_the_model_is_left_as_it_was():
    model = SEEING.make_model().train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    inspect_image(model, {"pixel_values": SEEING.make_pixels()})
    assert all(part.training and not part._forward_hooks for part in model.modules())
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    model.layers[0].attention.q_proj.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(OSError("stop")))
    with pytest.raises(OSError, match="stop"):
        inspect_image(model, {"pixel_values": SEEING.make_pixels()})
    assert all(part.training and not part._forward_hooks for part in model.modules())


def test_inputs_without_one_image_are_refused():
    with pytest.raises(ModelError, match="inputs must hold one tensor of images"):
        inspect_image(SEEING.make_model(), {"pixel_values": torch.zeros(3, 12, 20)})
    with pytest.raises(ModelError, match="inputs must hold one tensor of images"):
        inspect_image(nn.Identity(), (pixels(), pixels()))


def test_tokens_that_no_name_fits_are_extra():
    places = PatchPlaces(rows=1, columns=2, first=1, num_tokens=4, height=4, width=8, names=("[CLS]",))
    assert places.labels() == ("extra 0", "r0 c0", "r0 c1", "extra 1")
    assert places.grid().tolist() == [[-1, -1], [0, 0], [0, 1], [-1, -1]]


def test_the_png_of_a_picture_is_a_plain_one():
    content = to_png(torch.tensor([[[1, 2, 3], [4, 5, 6]]], dtype=torch.uint8))
    at = content.index(b"IDAT")
    assert zlib.decompress(content[at + 4 : -16]) == b"\0\1\2\3\4\5\6"
