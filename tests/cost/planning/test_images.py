"""The largest image that fits, and a smaller one as a change."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.config.vision_model import image_model
from headwise.cost.memory import predict_step
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.limits import largest_image, largest_seq, with_image_size
from headwise.cost.planning.option import Place
from headwise.cost.planning.plan import plan
from headwise.cost.planning.rank import list_changes
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.size_changes import list_size_changes
from headwise.cost.planning.sweep import axes_of, axis_of, parse_axes, sweep_sizes
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

PATCHES = PatchEncoderConfig(patch_size=13, embed_dim=92, num_heads=2, num_layers=3)
C3TR = C3TRConfig(in_channels=67, out_channels=97, num_heads=3, expansion=0.5)


def setup_at(config, image, *, batch=3, device="cpu", **step):
    model = image_model(config, image)
    assert model.patches is not None
    workload = Workload(batch=batch, seq=model.patches.num_tokens, device=device, **step)
    return Setup(config=model, workload=workload)


def device_of(num_bytes: int) -> Device:
    """A device that holds so much and needs nothing for itself: a CPU."""
    return Device(name="cpu", description="a CPU", memory_bytes=num_bytes, kind="cpu", source="a test", date="")


@pytest.mark.parametrize(("config", "step"), [(PATCHES, 13), (C3TR, 32)])
def test_the_largest_image_fits_and_the_next_one_does_not(config, step):
    setup = setup_at(config, 3 * step)
    assert setup.config is not None
    device = device_of(2**31)
    largest = largest_image(ClosedForm(), setup, device)
    assert largest is not None and largest % step == 0 and largest > 3 * step
    judge = Judge(ClosedForm(), device)
    assert judge.fits(with_image_size(setup, largest)) == "yes"
    assert judge.fits(with_image_size(setup, largest + step)) != "yes"
    assert largest_image(ClosedForm(), with_image_size(setup, 9 * step), device) == largest, "wherever it starts"
    assert largest_seq(ClosedForm(), setup, device) is None


def test_no_image_fits_a_device_that_does_not_hold_the_weights():
    setup = setup_at(PATCHES, 39)
    assert setup.config is not None
    weights = predict_step(setup.config, setup.workload).parameter_bytes
    assert largest_image(ClosedForm(), setup, device_of(weights)) == 0


def test_a_model_of_texts_has_no_largest_image():
    setup = Setup(config=None, workload=Workload(batch=1, seq=7))
    assert largest_image(ClosedForm(), setup, device_of(2**30)) is None


def test_a_plan_of_too_large_an_image_names_the_one_that_fits():
    setup = setup_at(PATCHES, 13 * 60, batch=41)
    device = device_of(2**31)
    planned = plan(ClosedForm(), setup, device)
    assert planned.verdict.fits == "no"
    smaller = next(change for change in planned.changes if change.key == "seq")
    assert smaller.change == f"image {planned.largest_image} in place of 780"
    assert smaller.fits == "yes" and smaller.list == "alters"
    assert planned.largest_image is not None and planned.largest_image < 780
    assert planned.largest_seq is None


def test_passes_that_batch_norms_see_apart_alter_the_result():
    accumulate = next(option for option in list_size_changes() if option.key == "accumulate")
    place = Place(judge=Judge(ClosedForm(), device_of(2**32)), num_devices=2)
    of_patches, of_c3tr = (accumulate.make(setup_at(*one, batch=4), place) for one in ((PATCHES, 39), (C3TR, 96)))
    assert of_patches[1:] == ("accumulate over 2 passes of 2 texts", "same")
    assert of_c3tr[1:] == ("accumulate over 2 passes of 2 texts, which batch norms see apart", "alters")


def test_what_the_module_has_no_setting_for_is_not_offered():
    setup = setup_at(C3TR, 96, batch=2)
    device = device_of(2**30)
    changes = list_changes(ClosedForm(), setup, device, num_devices=2, judge=Judge(ClosedForm(), device))
    reasons = {change.key: change.why for change in changes if not change.applies}
    assert reasons["kv-heads"] == "its module has key/value heads for every head"
    assert "convolutions stand beside its layers" in (reasons["freeze"] or "") or "one layer" in reasons["freeze"]


def test_one_place_cannot_be_made_smaller():
    setup = setup_at(C3TR, 32, batch=2)
    device = device_of(2**30)
    changes = list_changes(ClosedForm(), setup, device, num_devices=2, judge=Judge(ClosedForm(), device))
    why = next(change.why for change in changes if change.key == "seq")
    assert why == "the image is 32 pixels a side, one place, as it is"


def test_half_an_image_is_offered_where_it_fits():
    setup = setup_at(C3TR, 32 * 7)
    device = device_of(2**33)
    changes = list_changes(ClosedForm(), setup, device, num_devices=2, judge=Judge(ClosedForm(), device))
    change = next(change for change in changes if change.key == "seq")
    assert change.change == "image 96 in place of 224"
    half = with_image_size(setup, 96)
    assert half.config is not None and setup.config is not None
    peaks = [predict_step(one.config, one.workload).peak_bytes for one in (setup, half) if one.config]
    assert change.frees_bytes == peaks[0] - peaks[1]
    assert half.workload == replace(setup.workload, seq=9)


def test_a_sweep_of_images_tells_their_tokens_and_the_largest_image_of_each_batch():
    setup, device = setup_at(PATCHES, 39), device_of(2**31)
    sweep = sweep_sizes(ClosedForm(), setup, device, (2, 7, 2**30), (26, 65))
    assert [(point.batch, point.seq) for point in sweep.points[:4]] == [(2, 4), (2, 25), (7, 4), (7, 25)]
    for point, image in zip(sweep.points[:2], (26, 65), strict=True):
        alone = setup_at(PATCHES, image, batch=2)
        assert alone.config is not None
        assert point.peak_bytes == predict_step(alone.config, alone.workload).peak_bytes
    for edge in sweep.frontier[:2]:
        largest = largest_image(ClosedForm(), setup_at(PATCHES, 39, batch=edge.batch), device)
        assert largest is not None and edge.largest_seq == (largest // 13) ** 2
    assert sweep.frontier[2].largest_seq is None, "not even one place"


def test_a_sweep_goes_over_what_a_model_reads():
    model = setup_at(PATCHES, 39).config
    assert axis_of(model) == "image" and axis_of(None) == axis_of(preset("vit-b-16")) == "seq"
    assert parse_axes(["batch=1,3", "image=26..52"], size="image") == ((1, 3), (26, 52))
    with pytest.raises(ConfigError, match=r"a sweep must go over batch or image, .* got 'seq=5'"):
        parse_axes(["seq=5"], size="image")
    with pytest.raises(ConfigError, match="image must be a multiple of the patch size, 13 pixels; got 50"):
        axes_of(setup_at(PATCHES, 39), (), (26, 50))
    assert axes_of(setup_at(PATCHES, 39), (), ()) == ((3,), (39,)), "its own"
