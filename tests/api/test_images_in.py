"""An image on its way to the heads: what a checkpoint says is done to it, what a processor makes, what is refused."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headwise.api.images_in import NOT_TOLD, look_at_image, prepare_image
from headwise.api.inspect import inspect
from headwise.cli.main import main
from headwise.errors import ModelError, TextError, UnknownArchitectureError
from headwise.loading.config import locate
from headwise.loading.module import from_module, load_module
from headwise.nn.c3tr import C3TR
from headwise.nn.vision import PatchEncoder
from headwise.png import read_png, write_png

transformers = pytest.importorskip("transformers")
SEEING = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "inspection" / "seeing_vit.py")))
TOLD = {"size": {"height": 20, "width": 20}, "image_mean": list(SEEING.MEAN), "image_std": list(SEEING.STD)}


@pytest.fixture
def picture():
    return SEEING.make_picture()


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "seeing"
    SEEING.make_model(rows=5, pools=True).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(TOLD))
    return folder


def test_a_vision_checkpoint_needs_no_tokenizer_and_reads_the_image_as_its_file_says(checkpoint):
    picture = SEEING.make_picture(rows=5)
    loaded = load_module(locate(str(checkpoint)))
    assert loaded.tokenizer is None and loaded.config.patches.num_patches == 25
    file = write_image(checkpoint / "image.png", picture)
    prepared = prepare_image(loaded.module, file, folder=checkpoint)
    torch.testing.assert_close(prepared.inputs["pixel_values"], SEEING.make_pixels(picture), rtol=0, atol=1e-6)
    assert (prepared.mean, prepared.std, prepared.notes) == (SEEING.MEAN, SEEING.STD, ())
    inspection = look_at_image(loaded, file, folder=checkpoint)
    assert inspection.maps[0].weights[9::26] == b"\xff" * 26  # all 26 queries read token 9: row 1, column 3
    shown = read_png(inspection.patches.picture)
    assert shown.values == bytes(picture.permute(1, 2, 0).flatten().tolist())


def test_a_family_that_is_not_known_on_paper_is_loaded_all_the_same_where_it_reads_images(tmp_path, picture):
    config = transformers.Dinov2Config(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, image_size=12, patch_size=4
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    with pytest.raises(UnknownArchitectureError, match="dinov2"):
        load_module(locate(str(tmp_path)))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    loaded = load_module(locate(str(tmp_path)))
    assert loaded.config is None and loaded.notes[0].startswith("Nothing is predicted: ")
    inspection = look_at_image(loaded, picture, folder=tmp_path)
    assert (inspection.patches.rows, inspection.patches.columns) == (3, 3)


def test_a_vit_of_images_that_are_no_square_is_looked_at_though_nothing_is_predicted(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=7,
        image_size=[12, 20],
        patch_size=4,
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    result = inspect(tmp_path, image=torch.zeros(3, 12, 20, dtype=torch.uint8))
    assert (result.patches.rows, result.patches.columns) == (3, 5)
    assert not any("predicted" in note for note in result.notes)
    assert "image_size must be square" in load_module(locate(str(tmp_path))).notes[0]


def test_without_a_file_a_note_says_how_the_image_was_scaled(picture):
    loaded = from_module(SEEING.make_model())
    inspection = look_at_image(loaded, picture)
    assert NOT_TOLD in inspection.notes
    pixels = prepare_image(loaded.module, picture).inputs["pixel_values"]
    torch.testing.assert_close(pixels, picture[None] / 127.5 - 1, rtol=0, atol=1e-6)
    assert read_png(inspection.patches.picture).values == bytes(picture.permute(1, 2, 0).flatten().tolist())


class Processor:
    do_normalize, image_mean, image_std = True, list(SEEING.MEAN), list(SEEING.STD)

    def __call__(self, *, images, return_tensors):
        assert return_tensors == "pt" and images.dtype == torch.uint8
        return {"pixel_values": SEEING.make_pixels(images)}


class ForBoth:
    """As models of images and text have it: another one inside is for images."""

    image_processor = Processor()

    def __call__(self, *, images, return_tensors):
        return self.image_processor(images=images, return_tensors=return_tensors)


def test_a_processor_makes_the_pixels_and_tells_how_to_turn_them_back(picture):
    loaded = from_module(SEEING.make_model())
    for processor in (Processor(), ForBoth()):
        inspection = look_at_image(loaded, picture, processor=processor)
        assert inspection.maps[0].weights[9::16] == b"\xff" * 16
        assert read_png(inspection.patches.picture).values == bytes(picture.permute(1, 2, 0).flatten().tolist())
        assert NOT_TOLD not in inspection.notes
    prepared = prepare_image(loaded.module, picture, processor=lambda **_: {"pixel_values": SEEING.make_pixels()})
    assert prepared.mean is None and prepared.std is None


def test_what_a_processor_cannot_do_is_said_in_a_line(picture):
    model = SEEING.make_model()
    with pytest.raises(ModelError, match=r"processor must make pixels, .*; it raised KeyError: 'pixel_values'"):
        prepare_image(model, picture, processor=lambda **_: {})
    with pytest.raises(ModelError, match=r"\(batch, channels, height, width\); got \(3, 4\)"):
        prepare_image(model, picture, processor=lambda **_: {"pixel_values": torch.zeros(3, 4)})


def test_our_own_encoder_reads_the_image_at_its_own_size_or_smaller(picture):
    model = PatchEncoder(4, 8, 2, 1)
    assert prepare_image(model, picture).inputs["image"].shape == (1, 3, 12, 20)
    large = torch.zeros(3, 300, 1024, dtype=torch.uint8)
    assert prepare_image(model, large).inputs["image"].shape == (1, 3, 150, 512)
    with pytest.raises(ModelError, match="an image has 3 channels, and C3TR reads maps of others: give them as inputs"):
        prepare_image(C3TR(6, 8, num_heads=2), picture)


def test_pixels_that_are_not_scaled_to_one_leave_the_picture_to_its_own_range(tmp_path, picture):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**TOLD, "do_rescale": False}))
    prepared = prepare_image(SEEING.make_model(), picture, folder=tmp_path)
    assert prepared.mean is None
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**TOLD, "do_normalize": False}))
    prepared = prepare_image(SEEING.make_model(), picture, folder=tmp_path)
    assert (prepared.mean, prepared.std) == ((0.0,) * 3, (1.0,) * 3)


def write_image(path, picture):
    path.write_bytes(write_png([bytes(row.flatten().tolist()) for row in picture.permute(1, 2, 0)], in_colour=True))
    return path


def test_inspect_reads_an_image_and_the_command_line_does_too(checkpoint, capsys):
    file = write_image(checkpoint / "image.png", SEEING.make_picture(rows=5))
    page = checkpoint / "page.html"
    result = inspect(checkpoint, image=file, out=page)
    assert (result.patches.rows, result.patches.columns, result.patches.first) == (5, 5, 1)
    assert result.heads[0].max_weight == pytest.approx(1.0, abs=1e-6)
    assert 'id="image-overlay"' in page.read_text()
    printed = str(result)  # the heading of the last column stands on two lines
    assert "over 26 tokens of 1 image" in printed and "patches" in printed.split("mean of a layer's heads")[1]
    assert main(["inspect", str(checkpoint), "--image", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["patches"]["rows"] == 5 and told["tokens"][9] == "r1 c3"
    assert told["heads"][0]["patch_distance"] == pytest.approx(result.heads[0].patch_distance)


def test_pixels_in_hand_get_patches_where_they_can_be_told_apart():
    result = inspect(SEEING.make_model(), inputs={"pixel_values": SEEING.make_pixels()})
    assert (result.patches.rows, result.patches.columns) == (3, 5) and not result.is_example
    assert result.maps[0].weights[9::16] == b"\xff" * 16
    example = inspect(SEEING.make_model())
    assert example.is_example and example.patches.rows == 3
    encoder = inspect(PatchEncoder(4, 8, 2, 1), inputs={"image": SEEING.make_pixels()})
    assert (encoder.patches.rows, encoder.patches.first) == (3, 0)


def test_two_vision_models_are_compared_on_one_image(picture):
    result = inspect(SEEING.make_model(), against=SEEING.make_model(), image=picture, processor=Processor())
    assert result.others[0].comparable and result.others[0].inspection.patches == result.patches


@pytest.mark.parametrize(
    "other", [{"texts": ["a"]}, {"inputs": {}}, {"generate": 3}, {"window": 9}, {"roles": True}, {"targets": ["b"]}]
)
def test_what_goes_with_a_text_is_refused_beside_an_image(picture, other):
    with pytest.raises(TextError, match=f"an image is read alone: leave out {next(iter(other))}"):
        inspect(SEEING.make_model(), image=picture, **other)


def test_a_preset_has_no_weights_to_look_with(picture):
    with pytest.raises(
        ModelError, match=r"heads are shown of a model with weights, and .* has none: give a checkpoint"
    ):
        inspect("vit-b-16", image=picture)
