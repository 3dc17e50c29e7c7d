"""The bill of modules of images, from their config alone, against the modules themselves."""

import math
from dataclasses import replace

import pytest
import torch

from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.config.vision_model import GrowingPatches, image_model, with_image
from headwise.cost.flops import forward_flops
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.running.flop_counter import count_flops
from headwise.cost.running.measure import measure_training_step
from headwise.cost.running.parameters import count_module_parameters
from headwise.cost.running.peaks import record_peaks
from headwise.cost.step.play import play_step
from headwise.cost.step_flops import step_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.c3tr import C3TR
from headwise.nn.vision import PatchEncoder

STRIDE, PATCH = 11, 5
CONFIGS = {
    # an inner stage of int(29 * 0.42) = 12 channels in 3 heads, and of int(37 * 0.41) = 15
    "c3tr": C3TRConfig(in_channels=17, out_channels=29, num_layers=2, num_heads=3, expansion=0.42, hidden_dim=31),
    "compatible": C3TRConfig(
        in_channels=17, out_channels=37, num_layers=2, num_heads=3, expansion=0.41, compatible=True
    ),
    "patches": PatchEncoderConfig(
        patch_size=PATCH, embed_dim=12, num_heads=3, num_layers=2, num_channels=2, hidden_dim=31, dropout_p=0.1
    ),
}
FORMS = tuple(CONFIGS)


def describe(form, side):
    """Return the model on paper with so many places along a side."""
    config = CONFIGS[form]
    if isinstance(config, PatchEncoderConfig):
        return image_model(config, PATCH * side)
    return image_model(config, STRIDE * side, stride=STRIDE)


def build(form, side, batch, *, impl="auto"):
    """Return the module and what it reads."""
    config = CONFIGS[form]
    torch.manual_seed(0)
    if isinstance(config, PatchEncoderConfig):
        return PatchEncoder.from_config(config, impl=impl), torch.randn(batch, 2, PATCH * side, PATCH * side)
    return C3TR.from_config(config, impl=impl), torch.randn(batch, 17, side, side)


def owners_of(form, name):
    """Return whose the tensors of a name are that a step on a CPU makes, in order."""
    model = describe(form, side=7)
    tape = play_step(model, model.blocks, Workload(batch=3, seq=49, device="cpu"))
    return [record.owner for record in tape.records if record.name == name]


@pytest.fixture
def plain_kernels():
    """Keep what kernels take for themselves small: one thread, and no oneDNN, which copies what it reads."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    is_enabled, *_others = torch.backends.mkldnn.set_flags(_enabled=False, _fp32_precision=None)
    yield
    torch.backends.mkldnn.set_flags(_enabled=is_enabled, _fp32_precision=None)
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("form", FORMS)
def test_parameters_are_those_of_the_module_part_by_part(form):
    module, _ = build(form, side=3, batch=1)
    assert count_parameters(describe(form, side=3)) == count_module_parameters(module)


def test_parameters_and_flops_of_a_c3tr_are_those_counted_by_hand():
    model = describe("c3tr", side=7)
    parameters = count_parameters(model)
    assert parameters.other == 17 * 12 + 17 * 12 + 24 * 29  # cv1, cv2, cv3, without biases
    assert parameters.norm == 2 * (12 + 12 + 29) + (2 * 2 + 1) * 2 * 12  # batch norms; two a block, and the last one
    assert parameters.attention == 2 * 4 * (12 * 12 + 12)
    assert parameters.feed_forward == 2 * (12 * 31 + 31 + 31 * 12 + 12)
    assert parameters.embedding == 0
    places = 5 * 7 * 7
    around = 17 * 12 + 17 * 12 + 24 * 29
    in_layers = 2 * (4 * 12 * 12 + 2 * 12 * 31)
    pairs = 2 * 5 * 49 * 49 * 2 * 12  # layers, images, pairs, and a multiply-add of q k and of w v for each channel
    assert forward_flops(model, batch=5, seq=49).dense == 2 * (places * (around + in_layers) + pairs)


def test_the_compatible_form_projects_twice_and_has_no_norms_inside():
    parameters = count_parameters(describe("compatible", side=7))
    assert parameters.attention == 2 * (3 * 15 * 15 + 4 * (15 * 15 + 15))
    assert parameters.feed_forward == 2 * 2 * 15 * 15
    assert parameters.norm == 2 * (15 + 15 + 37)
    assert parameters.other == 2 * 17 * 15 + 30 * 37 + (15 * 15 + 15)


@pytest.mark.parametrize("form", FORMS)
def test_flops_are_those_counted_while_the_module_runs(form):
    module, images = build(form, side=7, batch=3)
    with torch.no_grad():
        assert forward_flops(describe(form, side=7), batch=3, seq=49) == count_flops(module.eval(), images)
    workload = Workload(batch=3, seq=49, device="cpu", optimizer="sgd")
    measured = measure_training_step(module, (images,), workload=workload, with_flops=True)
    assert step_flops(describe(form, side=7), workload).hardware.dense == measured.flops


@pytest.mark.parametrize("form", FORMS)
def test_flops_grow_with_the_area_of_an_image_and_pairs_with_its_square(form):
    """F(s) = a s^2 + b s^4 of the side s, so that two sizes foretell every other."""
    one, two, five = (forward_flops(describe(form, side), batch=3, seq=side**2).dense for side in (1, 2, 5))
    pairs = (two - 4 * one) // 12
    assert five == 25 * (one - pairs) + 625 * pairs
    heads_width = describe(form, side=1).embed_dim
    assert pairs == 3 * 2 * 2 * 2 * heads_width  # images, layers, two products, a multiply-add, for each channel


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_saved_bytes_are_measured_ones_and_so_is_the_peak_but_for_a_few_numbers(form, batch, plain_kernels):
    """The gap: numbers of the loss and a few vectors of one token's width, that backward makes in another order."""
    module, images = build(form, side=7, batch=batch)
    for optimizer in ("sgd", "adamw"):
        workload = Workload(batch=batch, seq=49, device="cpu", optimizer=optimizer)
        measured = measure_training_step(module, (images,), workload=workload)
        predicted = predict_step(describe(form, side=7), workload)
        assert predicted.parameter_bytes == measured.parameter_bytes
        assert predicted.saved_bytes == measured.saved_bytes
        assert abs(predicted.peak_bytes - measured.peak_bytes) <= 4 * (2 * 12 + 4) < measured.peak_bytes / 500
        assert predicted.peak_moment == measured.peak_moment


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_saved_bytes_of_narrow_steps_are_measured_ones(form, precision, plain_kernels):
    module, images = build(form, side=5, batch=3)
    workload = Workload(batch=3, seq=25, device="cpu", optimizer="sgd", precision=precision)
    measured = measure_training_step(module, (images,), workload=workload)
    assert predict_step(describe(form, side=5), workload).saved_bytes == measured.saved_bytes


@pytest.mark.parametrize("form", ["c3tr", "patches"])
def test_attention_by_reference_is_what_eager_means(form, plain_kernels):
    module, images = build(form, side=5, batch=3, impl="reference")
    workload = Workload(batch=3, seq=25, device="cpu", optimizer="sgd", attention="eager")
    measured = measure_training_step(module, (images,), workload=workload)
    predicted = predict_step(describe(form, side=5), workload)
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.01)


@pytest.mark.parametrize("form", FORMS)
def test_on_cuda_the_step_is_the_traced_one(form):
    """The trace does not see the copies that layer norms make of a stream that lies as its map: within 1 %."""
    module, images = build(form, side=7, batch=3)
    workload = Workload(batch=3, seq=49, optimizer="sgd")
    traced = step_memory(trace_step(module, (images,), workload))
    predicted = predict_step(describe(form, side=7), workload)
    assert predicted.saved_bytes == traced.saved_bytes
    assert predicted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.01)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_heads_that_torchs_layer_hands_to_a_fused_kernel_on_cuda_are_copied_where_images_alternate(precision):
    """Wide heads, so that a fused kernel runs: the efficient one in float32, flash in bfloat16."""
    config = C3TRConfig(in_channels=17, out_channels=128, num_heads=4, compatible=True)
    torch.manual_seed(0)
    module, maps = C3TR.from_config(config), torch.randn(3, 17, 7, 7)
    workload = Workload(batch=3, seq=49, optimizer="sgd", precision=precision)
    traced = step_memory(trace_step(module, (maps,), workload))
    predicted = predict_step(image_model(config, 7 * 32), workload)
    # Of a batch norm's statistics CUDA's kernels keep float32; the trace has the weights' dtype.
    statistics = 0 if precision == "fp32" else 2 * 2 * (64 + 64 + 128)
    assert predicted.saved_bytes == traced.saved_bytes + statistics
    assert predicted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.001)


def test_a_batch_norm_copies_a_gradient_that_lies_as_its_map_and_no_other(plain_kernels):
    """Backward of torch's batch norm on CPU, and the same in the ledger: cv1 gets its gradient from tokens."""
    layer = torch.nn.BatchNorm2d(12)
    map_bytes = 4 * 3 * 12 * 7 * 7
    taken = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        normed = layer(torch.randn(3, 12, 7, 7, requires_grad=True))
        gradient = torch.randn(3, 12, 7, 7).contiguous(memory_format=layout)
        with record_peaks(torch.device("cpu")) as peaks, peaks.moment("backward"):
            torch.autograd.backward(normed, gradient)
        taken[layout] = round(peaks.bytes_by_moment["backward"] / map_bytes)
    assert taken == {torch.contiguous_format: 2, torch.channels_last: 1}
    copied = {form: owners_of(form, "gradient of convolution, normed, made dense") for form in FORMS}
    assert copied == {"compatible": ["cv3", "cv2", "cv1"], "c3tr": ["cv3", "cv2"], "patches": []}


def test_positions_are_made_as_the_module_makes_them():
    """One image, whose positions are as large as its tokens: the first moments of a forward pass, to the byte."""
    module, images = build("patches", side=13, batch=1)
    workload = Workload(batch=1, seq=169, device="cpu", phase="prefill")
    traced = trace_step(module, (images,), workload)
    moments = dict.fromkeys(traced.moments)
    first_block = next(index for index, moment in enumerate(traced.moments) if "blocks" in moment)
    assert "forward: SinusoidalPositions" in moments
    predicted = predict_ledger(describe("patches", side=13), workload)
    embeddings = predicted.bytes_by_moment[predicted.moments.index("forward: embeddings")]
    assert embeddings == max(traced.bytes_by_moment[:first_block])


CHANGES = {
    "accumulation": {"accumulation": 3},
    "full": {"checkpoint": "full"},
    "selective": {"checkpoint": "selective"},
    "lora": {"lora": Lora(rank=2)},
    "frozen": {"frozen_layers": 1},
}
REFUSED = {("c3tr", "frozen"), *(("compatible", change) for change in ("full", "selective", "lora", "frozen"))}
"""Not played, or not run by what measures: a checkpoint needs a list of layers there."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", FORMS)
def test_a_changed_step_is_predicted_too(form, change, plain_kernels):
    if (form, change) in REFUSED:
        return
    module, images = build(form, side=5, batch=3)
    workload = Workload(batch=3, seq=25, device="cpu", optimizer="sgd", **CHANGES[change])
    measured = measure_training_step(module, (images,), workload=workload, with_flops=True)
    predicted = predict_step(describe(form, side=5), workload)
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.01)
    flops = step_flops(describe(form, side=5), workload)
    if change != "full":  # which `step_flops` counts by whole layers, and torch stops early
        assert flops.hardware.dense == measured.flops


@pytest.mark.parametrize("form", FORMS)
def test_a_forward_pass_alone_is_the_traced_one_to_the_byte(form):
    module, images = build(form, side=7, batch=3)
    workload = Workload(batch=3, seq=49, device="cpu", phase="prefill")
    traced = step_memory(trace_step(module, (images,), workload))
    # Of the smallest model layer norms' copies of the stream show, which the trace does not see.
    assert predict_step(describe(form, side=7), workload).peak_bytes == traced.peak_bytes


def test_the_ledger_of_a_c3tr_names_its_convolutions():
    entries = predict_ledger(describe("c3tr", side=7), Workload(batch=3, seq=49)).entries
    kept = {(one.owner, one.name): one.shape for one in entries if one.kind == "saved"}
    assert kept["cv1", "convolution"] == (3, 12, 7, 7)
    assert kept["cv3", "convolution, normed"] == (3, 29, 7, 7)
    assert kept["head", "both maps"] == (3, 24, 7, 7)
    assert ("feature map", (3, 17, 7, 7)) in {(one.name, one.shape) for one in entries if one.kind == "input"}


@pytest.mark.parametrize("form", FORMS)
def test_memory_grows_with_the_area_where_a_fused_kernel_keeps_no_scores(form):
    """What is saved is linear in the places: two sizes foretell a third, but for what does not grow at all."""
    saved = [
        predict_step(describe(form, side), Workload(batch=3, seq=side**2, device="cpu")).saved_bytes
        for side in (2, 4, 8)
    ]
    assert saved[2] - saved[1] == 4 * (saved[1] - saved[0])


def test_what_a_form_cannot_do_is_refused_in_one_line():
    compatible, c3tr = describe("compatible", side=3), describe("c3tr", side=3)
    workload = Workload(batch=1, seq=9)
    with pytest.raises(
        UnsupportedError, match="a compatible C3TR attends through torch's layer, with attention 'sdpa'"
    ):
        predict_step(compatible, replace(workload, attention="eager"))
    with pytest.raises(UnsupportedError, match="no part can be checkpointed by itself; got checkpoint 'selective'"):
        predict_step(compatible, replace(workload, checkpoint="selective"))
    with pytest.raises(ConfigError, match="projected twice; got rank 2"):
        predict_step(compatible, replace(workload, lora=Lora(rank=2)))
    with pytest.raises(
        ConfigError, match="frozen_layers must be 0 of C3TR, whose convolutions stand beside its layers"
    ):
        predict_step(c3tr, replace(workload, frozen_layers=1))
    with pytest.raises(ConfigError, match="its number of tokens, 3 x 3 places = 9; got 10"):
        forward_flops(c3tr, batch=1, seq=10)


def test_an_image_is_whole_patches_or_strides():
    with pytest.raises(ConfigError, match=r"^image must be a multiple of the stride, 32 pixels; got 650$"):
        image_model(CONFIGS["c3tr"], 650)
    with pytest.raises(ConfigError, match=r"^image must be a multiple of the patch size, 5 pixels; got 64$"):
        image_model(CONFIGS["patches"], 64)
    with pytest.raises(ConfigError, match=r"^stride must be left out of a PatchEncoder, .* got 8$"):
        image_model(CONFIGS["patches"], 65, stride=8)
    for image in (0, -5):
        with pytest.raises(ConfigError, match="image must be"):
            image_model(CONFIGS["patches"], image)


def test_a_c3tr_stands_at_stride_32_unless_told():
    model = image_model(CONFIGS["c3tr"], 640)
    assert isinstance(model.patches, GrowingPatches)
    assert model.patches.num_tokens == model.max_positions == 20 * 20
    assert image_model(CONFIGS["c3tr"], 640, stride=16).patches.num_tokens == 40 * 40


def test_another_size_of_image_changes_nothing_else():
    small, large = describe("c3tr", side=3), describe("c3tr", side=7)
    assert with_image(small, 7 * STRIDE) == large != small
    assert math.isqrt(large.max_positions) == 7
