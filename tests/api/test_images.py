"""`headwise.count` and `headwise.fit` of modules of images: by config, module or name, at a size of image."""

import sys

import pytest

from headwise.api.count import count
from headwise.api.fit import fit
from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.config.vision_model import image_model
from headwise.cost.flops import forward_flops
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError
from headwise.nn.c3tr import C3TR
from headwise.nn.vision import PatchEncoder

BLOCK = C3TRConfig(in_channels=67, out_channels=97, num_layers=2, num_heads=3)
ENCODER = PatchEncoderConfig(patch_size=13, embed_dim=92, num_heads=2, num_layers=3)
CPU = Device(name="cpu", description="a CPU", memory_bytes=2**33, kind="cpu", source="a test", date="")
USERS_FILE = """
from headwise.config.vision import C3TRConfig, PatchEncoderConfig

block = C3TRConfig(in_channels=67, out_channels=97, num_layers=2, num_heads=3)


def make_config():
    return block


def make_module():
    from headwise.nn.c3tr import C3TR

    return C3TR.from_config(block)


def make_other():
    from torch import nn

    return nn.MultiheadAttention(8, 2)
"""


@pytest.fixture
def users_module(tmp_path, monkeypatch, request):
    """Write a user's module into the current folder, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"images_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(USERS_FILE, encoding="utf-8")
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("config", [BLOCK, ENCODER])
def test_a_count_is_the_closed_form_at_that_image(config):
    image = 13 * 32  # whole patches and whole strides
    counted = count(config, image=image, batch=3, device="cpu")
    model = image_model(config, image)
    assert counted.seq == model.max_positions
    assert counted.parameters == count_parameters(model)
    assert counted.flops is not None and counted.flops.forward == forward_flops(model, batch=3, seq=counted.seq)
    assert counted.memory == predict_step(model, Workload(batch=3, seq=counted.seq, device="cpu"))
    assert counted.kv_cache_bytes is None and counted.model.max_positions is None


def test_the_answer_says_what_an_image_is_to_the_module():
    assert count(BLOCK, image=640).notes[0] == (
        "An image of 640 x 640 pixels at stride 32 is a feature map of 20 x 20 places = 400 tokens, with 67 channels. "
        "The rest of the network is not reckoned."
    )
    assert (
        "at stride 16 is a feature map of 40 x 40 places = 1,600 tokens" in count(BLOCK, image=640, stride=16).notes[0]
    )
    assert count(ENCODER, image=26).notes[0] == ("An image of 26 x 26 pixels in patches of 13 is 2 x 2 = 4 tokens.")


def test_every_spelling_of_a_module_is_counted_alike(users_module):
    expected = count(BLOCK, image=96, batch=2).to_dict()
    spellings = [
        C3TR.from_config(BLOCK),
        f"{users_module}:block",
        f"{users_module}:make_config",
        f"{users_module}:make_module",
        f"{users_module}.py:block",
        f"./{users_module}.py:make_module",
    ]
    for spelling in spellings:
        counted = count(spelling, image=96, batch=2).to_dict()
        for key in ("parameters", "flops", "memory", "seq", "notes", "layers"):
            assert counted[key] == expected[key], (spelling, key)


def test_a_module_by_reference_is_reckoned_so():
    by_reference = PatchEncoder.from_config(ENCODER, impl="reference")
    assert count(by_reference, image=52).memory == count(ENCODER, image=52, attention="eager").memory
    assert count(by_reference, image=52, attention="sdpa").memory == count(ENCODER, image=52).memory
    assert fit(by_reference, image=52, gpu=CPU).workload.attention == "eager"
    blocked = count(PatchEncoder.from_config(ENCODER, impl="blocked"), image=52)
    assert "Reckoned as with impl 'auto'; this module has 'blocked'." in blocked.notes


def test_what_the_form_cannot_do_is_said_in_place_of_its_memory():
    counted = count(C3TRConfig(in_channels=67, out_channels=96, compatible=True), image=64, attention="eager")
    assert counted.memory is None
    assert any("attends through torch's layer" in note for note in counted.notes)


def test_a_fit_finds_the_largest_image():
    plan = fit(ENCODER, image=13 * 200, batch=41, gpu=CPU)
    assert plan.fits != "yes"
    assert plan.largest_image is not None and 0 < plan.largest_image < 13 * 200
    assert plan.largest_seq is None
    side = plan.largest_image // 13
    assert (
        f"The largest image found to fit has {plan.largest_image:,} x {plan.largest_image:,} pixels, " in plan.notes[1]
    )
    assert f"{side:,} x {side:,} tokens" in plan.notes[1]
    assert fit(ENCODER, image=plan.largest_image, batch=41, gpu=CPU).fits == "yes"
    assert plan.to_dict()["largest_image"] == plan.largest_image


@pytest.mark.parametrize("verb", [count, fit])
@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        (BLOCK, {}, "image must be given for C3TR, which reads images of any size"),
        (BLOCK, {"image": 650}, "image must be a multiple of the stride, 32 pixels; got 650"),
        (ENCODER, {"image": 650, "seq": 7}, "seq must be left out of PatchEncoder, whose tokens are the places"),
        (ENCODER, {"image": 640}, "image must be a multiple of the patch size, 13 pixels; got 640"),
        (ENCODER, {"image": 650, "stride": 13}, "stride must be left out of a PatchEncoder"),
        ("bert-base", {"image": 224}, "image must be left out of bert-base, which is no PatchEncoder, C3TR or other"),
        ("bert-base", {"stride": 32}, "stride must be left out of bert-base, which is no C3TR; got 32"),
        ("vit-b-16", {"image": 640}, "image must be 224, the one size that vit-b-16 reads; got 640"),
        (BLOCK, {"image": 64, "verify": True}, "a model is verified on a small one of the same config"),
    ],
)
def test_what_an_image_cannot_be_is_one_line(verb, model, given, text):
    with pytest.raises(HeadwiseError) as refusal:
        verb(model, **given)
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_image_of_a_model_of_one_size_may_be_told():
    assert count("vit-b-16", image=224).to_dict() == count("vit-b-16").to_dict()


def test_another_module_takes_no_image(users_module):
    with pytest.raises(HeadwiseError, match="image must be left out of make_other, which is no PatchEncoder, C3TR"):
        count(f"{users_module}:make_other", image=64)


def test_a_subclass_may_do_anything_and_is_not_taken_for_the_module_itself():
    class Mine(PatchEncoder):
        pass

    with pytest.raises(HeadwiseError, match="image must be left out of Mine"):
        count(Mine.from_config(ENCODER), image=26)


def test_a_sweep_of_images_says_how_many_tokens_they_are():
    plan = fit(BLOCK, image=640, gpu=CPU, sweep=("batch=1,2", "image=64..256"))
    assert plan.sweep is not None
    assert [(point.batch, point.seq) for point in plan.sweep.points] == [
        (b, seq) for b in (1, 2) for seq in (4, 16, 64)
    ]
    assert "The sweep's images of 64, 128, 256 pixels a side have 4, 16, 64 tokens." in plan.notes
