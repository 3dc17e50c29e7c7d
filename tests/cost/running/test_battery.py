"""Ways of writing attention, and wrong numbers that were reported of other tools, each with its right value."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from headwise.config.presets import preset
from headwise.cost.flops import forward_flops
from headwise.cost.parameters import count_parameters
from headwise.cost.running.flop_counter import FlopCounter, count_flops
from headwise.cost.running.measure import measure_training_step
from headwise.cost.running.parameters import count_module_parameters
from headwise.cost.workload import Workload

MODES = {"train": nullcontext, "eval": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}

# Right values, in multiply-adds, for batch 2, length 128, 4 heads of 32: four projections of 2 * 128 * 128 * 128 each,
# scores and output of 2 * 4 * 128 * 128 * 32 each; with 2 kv heads two of the projections are half as wide.
BATCH, LENGTH, HEADS, HEAD_DIM = 2, 128, 4, 32
EMBED = HEADS * HEAD_DIM
ATTENTION_LAYER = 25_165_824
ATTENTION_LAYER_TWO_KV_HEADS = 20_971_520
ENCODER_LAYER = 58_720_256  # the attention layer and a feed-forward of 512
BARE_LINEAR = 16_777_216  # 128 -> 512


class Written(nn.Module):
    """An attention layer around a core that is written in one of many ways."""

    def __init__(self, core, num_kv_heads=HEADS):
        super().__init__()
        self.core = core
        self.query = nn.Linear(EMBED, EMBED)
        self.key = nn.Linear(EMBED, num_kv_heads * HEAD_DIM)
        self.value = nn.Linear(EMBED, num_kv_heads * HEAD_DIM)
        self.out = nn.Linear(EMBED, EMBED)

    def forward(self, x):
        heads = [
            part(x).view(BATCH, LENGTH, -1, HEAD_DIM).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        return self.out(self.core(*heads).transpose(1, 2).reshape(BATCH, LENGTH, EMBED))


class TorchLayer(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.layer = nn.MultiheadAttention(EMBED, HEADS, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x):
        return self.layer(x, x, x, need_weights=self.need_weights)[0]


class BareLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, EMBED))

    def forward(self, x):
        return functional.linear(x, self.weight)


def by_matmul(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1), v)


def by_operator(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def by_einsum(q, k, v):
    return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)


def by_bmm(q, k, v):
    q, k, v = (heads.flatten(0, 1) for heads in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v).unflatten(0, (BATCH, HEADS))


def by_sdpa(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v)


def by_sdpa_keywords(q, k, v):
    return functional.scaled_dot_product_attention(query=q, key=k, value=v)


def by_sdpa_causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_sdpa_grouped(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


BATTERY = {
    "matmul": (lambda: Written(by_matmul), ATTENTION_LAYER),
    "@": (lambda: Written(by_operator), ATTENTION_LAYER),
    "einsum": (lambda: Written(by_einsum), ATTENTION_LAYER),
    "bmm": (lambda: Written(by_bmm), ATTENTION_LAYER),
    "sdpa": (lambda: Written(by_sdpa), ATTENTION_LAYER),
    "sdpa keywords": (lambda: Written(by_sdpa_keywords), ATTENTION_LAYER),
    "sdpa is_causal": (lambda: Written(by_sdpa_causal), ATTENTION_LAYER),
    "sdpa enable_gqa": (lambda: Written(by_sdpa_grouped, num_kv_heads=2), ATTENTION_LAYER_TWO_KV_HEADS),
    "nn.MultiheadAttention": (lambda: TorchLayer(need_weights=False), ATTENTION_LAYER),
    "nn.MultiheadAttention with weights": (lambda: TorchLayer(need_weights=True), ATTENTION_LAYER),
    "nn.TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(EMBED, HEADS, 512, batch_first=True),
        ENCODER_LAYER,
    ),
    "linear on a bare parameter": (BareLinear, BARE_LINEAR),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BATTERY)
def test_dense_is_right_however_attention_is_written_and_in_every_mode(name, mode):
    make, multiply_adds = BATTERY[name]
    module = make().train(mode == "train")
    with MODES[mode]():
        assert count_flops(module, torch.randn(BATCH, LENGTH, EMBED)).dense == 2 * multiply_adds


WRAPPED = {
    "functional_call": lambda module, x: functional_call(module, dict(module.named_parameters()), (x,)),
    "torch.compile": lambda module, x: torch.compile(module, backend="aot_eager")(x),
    "vmap": lambda module, x: torch.vmap(module, randomness="same")(x[None]),
    "checkpoint": lambda module, x: checkpoint(module, x, use_reentrant=False),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's own, of a kernel without a batched form
@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("name", BATTERY)
def test_dense_is_right_through_what_may_stand_around_a_module(name, wrapped):
    make, multiply_adds = BATTERY[name]
    module = make().eval()
    assert count_flops(WRAPPED[wrapped], module, torch.randn(BATCH, LENGTH, EMBED)).dense == 2 * multiply_adds


@pytest.mark.parametrize("where", ["meta", "fake", "fake under autocast"])
@pytest.mark.parametrize("name", BATTERY)
def test_dense_is_right_without_numbers(name, where):
    make, multiply_adds = BATTERY[name]
    autocast = torch.autocast("cpu", torch.bfloat16) if "autocast" in where else nullcontext()
    with torch.device("meta") if where == "meta" else FakeTensorMode(), autocast:
        assert count_flops(make(), torch.randn(BATCH, LENGTH, EMBED)).dense == 2 * multiply_adds


def test_a_backward_pass_counts_what_the_hardware_does():
    """Two products for each, but none for a first input without gradient; the fused kernel makes its scores again."""
    projection, scores = 2 * BATCH * LENGTH * EMBED * EMBED, 2 * BATCH * LENGTH * LENGTH * EMBED
    forward = 4 * projection + 2 * scores
    for core, backward_of_core in ((by_matmul, 4), (by_sdpa, 5)):
        module = Written(core)
        count = count_flops(lambda m=module: m(torch.randn(BATCH, LENGTH, EMBED)).sum().backward())
        assert count.dense == forward + (4 + 1) * projection + backward_of_core * scores
        assert count.attended is None


@pytest.mark.parametrize(("reentrant", "forwards"), [(True, 4.0), (False, 3.5)])
def test_a_checkpoint_counts_what_it_computes_again(reentrant, forwards):
    """Without reentry it stops once all that was dropped is there: the segment's last product is not made again."""
    segment = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(3, 8, requires_grad=True)
    count = count_flops(lambda: checkpoint(segment, x, use_reentrant=reentrant).sum().backward())
    assert count.dense == forwards * 2 * 2 * 3 * 8 * 8


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vjp])
def test_gradients_by_torch_func_count(transform):
    x, weight = torch.randn(3, 8), torch.randn(8, 5)
    loss = lambda inputs: (inputs @ weight).sum()  # noqa: E731
    run = (
        (lambda: transform(loss)(x)) if transform is torch.func.grad else lambda: transform(loss, x)[1](torch.ones(()))
    )
    assert count_flops(run).dense == 2 * 2 * 3 * 8 * 5


def test_a_counter_inside_a_counter_counts_its_own_part_and_changes_nothing_outside():
    layer, x = nn.Linear(7, 5), torch.randn(3, 7)
    with FlopCounter() as outer:
        layer(x)
        with FlopCounter() as inner:
            layer(x)
    assert (outer.count.dense, inner.count.dense) == (2 * 2 * 3 * 7 * 5, 2 * 3 * 7 * 5)


def test_in_place_products_and_outputs_given_count():
    square = torch.randn(3, 3)
    product = 2 * 3 * 3 * 3
    cases = [
        (lambda: square.clone().addmm_(square, square), product),
        (lambda: torch.mm(square, square, out=torch.empty(3, 3)), product),
        (lambda: square.clone()[None].baddbmm_(square[None], square[None]), product),
        (lambda: square[0].clone().addmv_(square, square[0]), 2 * 3 * 3),
        (lambda: torch.linalg.multi_dot([square, square, square]), 2 * product),
        (lambda: torch.tensordot(square, square, 1), product),
        (lambda: torch.vdot(square[0], square[0]), 2 * 3),
    ]
    for run, flops in cases:
        assert count_flops(run).dense == flops


def test_a_branch_counts_as_it_is_taken():
    square = torch.randn(3, 3)
    for is_taken in (True, False):
        run = lambda taken=is_taken: torch.cond(torch.tensor(taken), lambda x: x @ x, lambda x: x + 1, (square,))  # noqa: E731
        assert count_flops(run).dense == (2 * 3 * 3 * 3 if is_taken else 0)


@pytest.mark.parametrize("mode", ["train", "no_grad"])
def test_recurrent_layers_count_where_they_are_one_kernel(mode):
    layer = nn.LSTM(7, 5, num_layers=2, bidirectional=True, batch_first=True)
    gates = 4 * 5
    first, second = 2 * gates * (7 + 5), 2 * gates * (2 * 5 + 5)  # two directions
    with MODES[mode]():
        assert count_flops(layer, torch.randn(2, 3, 7)).dense == 2 * 2 * 3 * (first + second)


def test_tensors_made_of_tensors_count_by_what_is_inside():
    ragged = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    assert count_flops(nn.Linear(8, 5), ragged).dense == 2 * (3 + 5) * 8 * 5


# Silence must never read as zero


@torch.library.custom_op("headwise_battery::product", mutates_args=())
def hidden_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_operations_of_unknown_cost_are_named():
    square = torch.randn(3, 3)
    ragged = torch.nested.nested_tensor([torch.randn(1, 3, 8), torch.randn(1, 5, 8)])
    cases = [
        (lambda: hidden_product(square, square), "headwise_battery::product"),
        (lambda: functional.bilinear(square, square, torch.randn(2, 3, 3)), "aten::_trilinear"),
        (lambda: torch.cdist(torch.randn(30, 3), torch.randn(30, 3)), "aten::_euclidean_dist"),
        (lambda: torch.linalg.inv(square), "aten::linalg_inv_ex"),
        (lambda: ragged @ ragged.transpose(-1, -2), "aten::matmul"),
    ]
    for run, name in cases:
        assert count_flops(run).uncounted == (name,)


def test_a_transformer_leaves_nothing_uncounted():
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)

    def step():
        loss = layer(torch.randn(2, 5, 24)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        torch.optim.AdamW(layer.parameters()).step()

    assert count_flops(step).uncounted == ()


# Public reports: the tool's number was wrong, here is the right one


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_counts_without_being_compiled():
    """Reported as pytorch#134385: it raised. Right: 4 b a d for each pair that is not masked."""
    query, key, value = torch.randn(2, 4, 100, 16), torch.randn(2, 2, 70, 16), torch.randn(2, 2, 70, 8)

    def allows(batch, head, query_index, key_index):
        return (query_index >= key_index) & (head < 3)

    block_mask = create_block_mask(allows, 2, 4, 100, 70, device="cpu", BLOCK_SIZE=32)
    pairs = 2 * sum(i >= j and h < 3 for h in range(4) for i in range(100) for j in range(70))
    for function in (flex_attention, torch.compile(flex_attention, backend="eager")):
        with torch.no_grad():
            count = count_flops(function, query, key, value, block_mask=block_mask, enable_gqa=True)
        assert (count.dense, count.attended) == (2 * 24 * 2 * 4 * 100 * 70, 2 * 24 * pairs)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_leaves_out_what_its_score_function_hides():
    query = torch.randn(1, 2, 13, 8)

    def hide_the_future(score, batch, head, query_index, key_index):
        return torch.where(query_index >= key_index, score, -float("inf"))

    with torch.no_grad():
        assert count_flops(flex_attention, query, query, query).attended == 2 * 16 * 2 * 13 * 13
        hidden = count_flops(flex_attention, query, query, query, score_mod=hide_the_future)
    assert hidden.attended == 2 * 16 * 2 * 13 * 14 // 2


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_a_count_without_numbers_is_that_of_the_real_run(where):
    """Reported as pytorch#115362: tensors without numbers take another kernel than real ones."""
    heads = (2, 4, 13, 8)
    real = count_flops(by_sdpa_causal, *(torch.randn(heads) for _ in range(3)))
    with torch.device("meta") if where == "meta" else FakeTensorMode():
        assert count_flops(by_sdpa_causal, *(torch.randn(heads) for _ in range(3))).dense == real.dense


def test_a_multiply_add_is_two():
    """Reported as fvcore#69, ptflops#16 and others: "flops" of a ResNet were its multiply-adds."""
    assert count_flops(nn.Conv2d(3, 5, 7), torch.randn(2, 3, 11, 11)).dense == 2 * (2 * 5 * 5 * 5) * (3 * 7 * 7)


def test_flops_of_a_prefill_grow_faster_than_its_length():
    """Reported as calflops#46: twice the length, twice the FLOPs. Right: 2 s P + 4 L s^2 A."""
    config = preset("llama-2-7b", head=True)
    products = 6_738_415_616 - 32_000 * 4096 - (2 * 32 + 1) * 4096  # without the table that is read and the norms
    for seq in (8192, 16384):
        expected = 2 * seq * products + 4 * 32 * seq**2 * 4096
        assert forward_flops(config, batch=1, seq=seq).dense == expected
    short, long = (forward_flops(config, batch=1, seq=seq).dense for seq in (8192, 16384))
    assert long > 2.2 * short


def test_frozen_layers_count():
    """Reported as ptflops#101: with requires_grad=False a fused path hid everything."""
    module = nn.TransformerEncoderLayer(EMBED, HEADS, 512, batch_first=True).eval().requires_grad_(False)
    assert count_flops(module, torch.randn(BATCH, LENGTH, EMBED)).dense == 2 * ENCODER_LAYER


def test_a_compiled_layer_counts_once_before_and_after_it_is_compiled():
    """Reported as ptflops#110: a compiled linear layer counted three times."""
    layer = torch.compile(nn.Linear(7, 5), backend="aot_eager")
    x = torch.randn(3, 7)
    cold = count_flops(layer, x).dense
    layer(x)
    assert cold == count_flops(layer, x).dense == 2 * 3 * 7 * 5


def test_a_function_that_was_taken_before_counting_counts():
    """Reported as DeepSpeed#2565 and #4723: what is not reached by replacing functions was missing."""
    attend = functional.scaled_dot_product_attention
    heads = torch.randn(1, 2, 5, 8)
    assert count_flops(attend, query=heads, key=heads, value=heads).dense == 4 * 2 * 5 * 5 * 8


def test_a_step_holds_sixteen_bytes_a_parameter_at_least():
    """Reported as DeepSpeed#4527: 0.49 GB estimated, 21.3 GB measured. Right: weights, gradients and two moments."""
    layer = nn.Linear(64, 64, bias=False)
    assert measure_training_step(layer, (torch.ones(1, 64),)).peak_bytes >= 16 * 64 * 64


def test_parameters_and_flops_on_the_meta_device():
    """Found in DeepSpeed's profiler: 512 parameters, since all data pointers are 0 there."""
    with torch.device("meta"):
        layer, x = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), torch.empty(1, 10, 512)
    assert count_module_parameters(layer).total == 3_152_384
    assert count_flops(layer, x).dense == 2 * 10 * (4 * 512**2 + 2 * 512 * 2048) + 4 * 10**2 * 512


def test_a_vision_transformer_counts_its_attention():
    """Reported as torchinfo#226: 0.173 G multiply-adds for ViT-B/16 at 224 x 224. Right: 17.56 G."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)).eval()
        image = torch.empty(1, 3, 224, 224)
    patches = 196 * 768 * (3 * 16 * 16)
    layers = 12 * (197 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 197**2 * 768)
    assert count_module_parameters(model).total == 86_567_656
    assert count_flops(model, image).dense == 2 * (patches + layers + 768 * 1000) == 2 * 17_563_828_224


def test_a_layer_applied_many_times_saves_every_output():
    """Reported as torchinfo#144: 130 MB said, 4044 MiB allocated: the output of each of 100 applications."""

    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x):
            for _ in range(100):
                x = self.layer(x)
            return x

    step = measure_training_step(Repeated(), (torch.ones(320, 32),))
    assert step.saved_bytes == 99 * 4 * 320 * 32  # the last output is not read; the first input was given


def test_a_tied_matrix_is_one():
    """Reported as torchinfo#322: 128,000 for 64,000."""
    model = nn.ModuleDict({"words": nn.Embedding(1000, 64), "lm_head": nn.Linear(64, 1000, bias=False)})
    model["lm_head"].weight = model["words"].weight
    assert count_module_parameters(model).total == 64_000


def test_an_untied_head_is_not_lost():
    """Reported of accelerate's estimate: 7,504,924,672 parameters for Llama-3-8B."""
    assert count_parameters(preset("llama-3-8b", head=True)).total == 8_030_261_248


def test_one_checkpoint_around_everything_saves_nothing_at_the_peak():
    """Reported as pytorch#147449: 60.84 GB with it, 60.84 GB without; backward makes all of it again at once."""

    class Chain(nn.Module):
        def __init__(self, num_segments):
            super().__init__()
            self.segments = nn.ModuleList(
                nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(12 // num_segments)))
                for _ in range(num_segments)
            )

        def forward(self, x):
            for segment in self.segments:
                x = segment(x)
            return x

    def peak(num_segments, kind):
        asked = Workload(batch=1, seq=1, device="cpu", optimizer="sgd", checkpoint=kind)
        return measure_training_step(Chain(num_segments), (torch.ones(1000, 16),), workload=asked).peak_bytes

    plain, whole, in_four = peak(1, "none"), peak(1, "full"), peak(4, "full")
    one_output = 4 * 1000 * 16
    assert abs(plain - whole) <= 2 * one_output
    assert in_four < plain - 4 * one_output


def test_attention_on_cpu_is_counted():
    """Reported as pytorch#195460."""
    heads = torch.randn(1, 12, 64, 64)
    assert count_flops(by_sdpa, heads, heads, heads).dense == 12_582_912


def test_an_attention_that_decomposes_is_counted_once():
    """Reported as pytorch#134804: the formula of the call and those of its parts were added."""
    heads = torch.randn(2, 5, 9, 4)
    for dropout_p in (0.0, 0.25):  # the fused kernel; plain products
        count = count_flops(functional.scaled_dot_product_attention, heads, heads, heads, dropout_p=dropout_p)
        assert count.dense == 12_960


def test_inference_mode_hides_nothing():
    """Reported as pytorch#126268."""
    layer = nn.Linear(7, 11)
    with torch.inference_mode():
        assert count_flops(layer, torch.randn(3, 7)).dense == 2 * 3 * 7 * 11


@pytest.mark.parametrize("num_heads", [4, 8])
def test_the_number_of_heads_does_not_change_the_count_and_no_product_is_missing(num_heads):
    """Reported as fvcore#153: the products of the attention itself were missing."""
    layer = nn.MultiheadAttention(448, num_heads, batch_first=True)
    x = torch.randn(1, 300, 448)
    assert count_flops(layer, x, x, x, need_weights=False).dense == 2 * 321_484_800


def test_torch_layers_count_without_submodules_that_are_called():
    """Reported as pytorch-OpCounter#197: nothing at all was counted."""
    layer = nn.MultiheadAttention(100, 1, batch_first=True)
    x = torch.randn(1, 1000, 100)
    assert count_flops(layer, x, x, x).dense == 2 * 240_000_000
