"""Why changes free nothing: the traps of the field, each on a model in which it is one."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.outline import Outline
from headwise.cost.planning.catalogue import CATALOGUE
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.model_changes import _widen_heads
from headwise.cost.planning.option import Place
from headwise.cost.planning.rank import try_option
from headwise.cost.planning.reasons import _frees_little, kernel_choice
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.workload import Lora, Workload

MIB = 2**20
GIB = 2**30
SETUP = Setup(config=preset("gpt2"), workload=Workload(batch=1, seq=8))
CPU = Device(name="here", description="a machine", memory_bytes=64 * GIB, kind="cpu", source="-", date="2026-01-01")


def shallow(name, num_layers=3, **settings):
    config = preset(name, **settings)
    return replace(config, blocks=config.blocks[:num_layers])


def row(key, config, device=DEVICES["a100-80gb"], **workload):
    """One change, tried by bounds alone."""
    step = Workload(**workload, device=device.step_device, compute_capability=device.compute_capability or (8, 0))
    option = next(option for option in CATALOGUE if option.key == key)
    judge = Judge(ClosedForm(), device, max_replayed_layers=0)
    return try_option(option, Setup(config=config, workload=step), Place(judge, 8))


def widened(config):
    """Half the heads, each twice as wide."""
    old = config.blocks[0].attention
    dim = 2 * old.head_dim
    new = replace(old, num_heads=old.num_heads // 2, head_dim=dim, v_head_dim=dim, scale=dim**-0.5)
    return replace(config, blocks=tuple(replace(block, attention=new) for block in config.blocks))


def is_nothing(change, percent=1):
    """Less than a hundredth of the peak, and not only because a size was rounded."""
    return change.applies and 100 * abs(change.frees_bytes) < percent * (change.peak_bytes + change.frees_bytes)


def test_selective_checkpointing_of_fused_attention_frees_nothing():
    change = row("checkpoint-selective", shallow("gpt2"), batch=8, seq=1024, precision="amp-bf16")
    assert is_nothing(change)
    assert 'the fused kernel ("flash") has kept no scores, so there are none to drop' in change.why


def test_selective_checkpointing_of_eager_attention_frees_the_scores():
    change = row("checkpoint-selective", shallow("gpt2"), batch=8, seq=1024, attention="eager")
    scores = 8 * 12 * 1024 * 1024 * 4
    assert change.frees_bytes > 3 * scores
    assert change.why is None


def test_logits_remain_when_all_layers_are_checkpointed_and_their_size_is_told():
    """As in ms-swift#6966: 32k tokens x 151,936 scores in float32 are 18.5 GiB, and there are several of them."""
    workload = {"batch": 1, "seq": 32_768, "precision": "bf16", "loss": "cross_entropy", "optimizer": "sgd"}
    device = DEVICES["a100-40gb"]
    change = row("checkpoint-full", shallow("qwen3-4b"), device, **workload)
    assert change.fits == "no"
    assert change.frees_bytes < change.peak_bytes / 2
    assert "the peak is at the start of the backward pass, at the loss" in change.why
    assert "(1, 32768, 151936) float32, 18.55 GiB" in change.why
    logits = 32_768 * 151_936 * 4
    assert row("chunked-cross-entropy", shallow("qwen3-4b"), device, **workload).frees_bytes > 2 * logits


def test_what_a_change_frees_elsewhere_is_told_with_the_moment_and_what_fills_the_peak():
    workload = {"batch": 16, "seq": 1024, "loss": "cross_entropy", "precision": "amp-bf16"}
    change = row("fused-step", shallow("gpt2"), **workload)
    assert is_nothing(change)
    assert "at the optimizer step, but nothing of the peak at the start of the backward pass, at the loss" in change.why
    assert "log-probabilities (16, 1024, 50257) float32, 3.07 GiB" in change.why


def test_a_fused_step_frees_a_copy_of_the_weights_where_the_peak_is_at_the_optimizer():
    change = row("fused-step", preset("bert-base"), batch=1, seq=32)
    weights = 109_482_240 * 4
    assert 0.5 * weights < change.frees_bytes < weights
    assert change.why is None


def test_fewer_key_value_heads_free_almost_nothing_of_a_long_step_that_is_all_scores():
    change = row("kv-heads", shallow("qwen3-4b"), batch=4, seq=4096, attention="eager")
    assert is_nothing(change)
    assert "but" in change.why
    assert "attention weights (4, 32, 4096, 4096) float32" in change.why


def test_grouped_heads_in_float32_fall_to_the_math_kernel_and_half_precision_does_not():
    llama = shallow("llama-3.2-1b")
    change = row("amp-bf16", llama, batch=1, seq=2048)
    assert 'the kernel is then "flash" in place of "math"' in change.why
    change = row("sdpa", llama, batch=1, seq=2048, attention="eager")
    assert 'torch takes its "math" kernel, memory quadratic' in change.why
    assert "it needs as many key/value heads as query heads" in change.why


def test_grouped_heads_with_a_mask_tensor_are_repeated_and_stay_fused():
    """The library's call falls to math (ComfyUI#15135); transformers repeats keys and values first, and frees less."""
    windowed = replace(shallow("mistral-7b").blocks[0].attention, num_kv_heads=32)
    many = replace(
        shallow("mistral-7b"), blocks=tuple(replace(b, attention=windowed) for b in shallow("mistral-7b").blocks)
    )
    change = row("kv-heads", many, batch=1, seq=8192, precision="bf16", optimizer="sgd")
    assert change.applies
    assert "math" not in (change.why or "")
    workload = Workload(batch=1, seq=8192, precision="bf16", compute_capability=(8, 0))
    assert kernel_choice(Setup(config=shallow("mistral-7b"), workload=workload)).name == "efficient"


def test_heads_too_wide_for_the_fused_kernels_fall_to_math():
    """transformers#46960: beyond 256 numbers a head flash refuses, and grouped heads have no other fused kernel."""
    change = row("heads", shallow("gemma-2b"), batch=1, seq=2048, precision="bf16")
    kernel = kernel_choice(
        Setup(config=widened(shallow("gemma-2b")), workload=Workload(batch=1, seq=2048, precision="bf16"))
    )
    assert (kernel.name == "math") == ('its "math" kernel' in (change.why or ""))
    assert kernel.name != "flash"


def test_dropout_makes_fused_attention_fall_back_on_a_cpu():
    change = row("sdpa", shallow("bert-base"), CPU, batch=2, seq=256, attention="eager")
    assert "has no dropout; got dropout_p = 0.1" in change.why
    assert 'its "math" kernel' in change.why


def test_a_window_frees_nothing_under_a_mask_tensor_of_all_pairs():
    """transformers hands sdpa the whole square as a mask, however narrow the window is."""
    change = row("window", shallow("mistral-7b"), batch=1, seq=4096, precision="bf16", optimizer="sgd")
    assert is_nothing(change)
    assert change.frees_bytes == 0
    assert "it makes no tensor of the step smaller" in change.why


@pytest.mark.parametrize(
    ("key", "name", "workload", "reason"),
    [
        ("sdpa", "gpt2", {}, "already so"),
        ("checkpoint-full", "gpt2", {"checkpoint": "full"}, "already so"),
        ("checkpoint-selective", "gpt2", {"checkpoint": "full"}, "keeps less already"),
        ("checkpoint-full", "gpt2", {"phase": "prefill"}, "there is none in a prefill"),
        ("amp-bf16", "gpt2", {"precision": "bf16"}, "autocast keeps them in float32"),
        ("fp16", "gpt2", {"precision": "bf16"}, "fp16 takes as many bytes as bf16"),
        ("chunked-cross-entropy", "gpt2", {}, "the loss is a sum"),
        ("adamw8bit", "gpt2", {"optimizer": "adamw8bit"}, "already so"),
        ("fused-step", "gpt2", {"optimizer": "adafactor"}, "no fused step"),
        ("lora", "gpt2", {"lora": Lora(rank=3)}, "already so: LoRA of rank 3"),
        ("freeze", "gpt2", {"lora": Lora(rank=3)}, "LoRA freezes every weight"),
        ("lora", "gpt2", {"frozen_layers": 2}, "give one of them"),
        ("kv-heads", "gemma-2b", {}, "one key/value head as it is"),
        ("kv-heads", "bert-base", {}, "the implementation of 'bert' has no such layers"),
        ("window", "bert-base", {}, "has no sliding windows"),
        ("window", "llama-3-8b", {}, "'llama' has no sliding windows"),
        ("window", "mistral-7b", {"seq": 64}, "holds all 64"),
        ("kv-int8", "gpt2", {}, "keeps no KV cache"),
        ("kv-int8", "bert-base", {"phase": "prefill"}, "an encoder has no KV cache"),
        ("accumulate", "gpt2", {}, "one text, which cannot be split"),
        ("batch", "gpt2", {}, "one text as it is"),
        ("seq", "vit-b-16", {"seq": 197}, "every image has 197 tokens"),
        ("tensor", "bert-base", {}, "8"),
        ("zero1", "gpt2", {"phase": "prefill"}, "no optimizer states"),
        ("heads", "t5-small", {}, "encoder-decoder"),
        ("heads", "deepseek-v3", {}, "LatentAttention"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(key, name, workload, reason):
    config = shallow(name) if preset(name).encoder is None else preset(name)
    change = row(key, config, **{"batch": 1, "seq": 128, **workload})
    assert not change.applies
    assert reason in change.why


@pytest.mark.parametrize("key", ["bf16", "amp-bf16"])
def test_a_card_without_bfloat16_units_is_named(key):
    change = row(key, shallow("gpt2"), DEVICES["v100-32gb"], batch=1, seq=64)
    assert "V100 32 GB has no bfloat16 units (compute capability 7.0; they begin with 8.0)" in change.why
    assert row(key, shallow("gpt2"), DEVICES["t4"], batch=1, seq=64).applies is False
    assert row(key, shallow("gpt2"), DEVICES["rtx-3090"], batch=1, seq=64).applies


def test_a_window_is_known_wherever_transformers_has_one():
    """The list of implementations is read off transformers' configs."""
    transformers = pytest.importorskip("transformers")
    from headwise.cost.planning.model_changes import WINDOWED_TYPES
    from headwise.cost.step.models import FAMILIES

    with_window = {
        name
        for name in FAMILIES
        if name != "headwise" and hasattr(transformers.AutoConfig.for_model(name), "sliding_window")
    }
    assert with_window == WINDOWED_TYPES - {"headwise"}


def test_a_fused_kernel_that_takes_no_dropout_is_freed_by_dropping_nothing():
    """On a CPU torch's fused kernel has no dropout, so that its math kernel keeps the scores."""
    change = row("dropout", shallow("gpt2"), CPU, batch=8, seq=512)
    assert change.frees_bytes > 3 * 8 * 12 * 512 * 512 * 4
    assert change.list == "alters"
    assert "in place of" in change.why
    assert row("dropout", shallow("llama-3.2-1b"), CPU, batch=2, seq=64).why == "the model has no dropout"
    assert row("dropout", shallow("gpt2"), CPU, batch=2, seq=64, dropout=False).why == "already so: dropout is off"


def test_a_thousandth_more_or_less_is_said_to_be_nothing():
    one = Outline(moments=("loss",), bytes_by_moment=(1_000_000,), groups=())
    for num_bytes, words in ((1_000_999, "no tensor of the step smaller"), (1_001_000, "takes 1000 B more")):
        other = Outline(moments=("loss",), bytes_by_moment=(num_bytes,), groups=())
        assert words in _frees_little(SETUP, SETUP, one, other)


def test_of_equal_moments_the_first_is_where_a_change_frees_most():
    one = Outline(moments=("forward: layer 0", "loss", "optimizer step"), bytes_by_moment=(7, 7, 90), groups=())
    other = replace(one, bytes_by_moment=(2, 2, 90))
    assert "it frees 5 B at forward of the first layer" in _frees_little(SETUP, SETUP, one, other)


def test_a_window_as_long_as_the_texts_cuts_nothing():
    assert row("window", shallow("qwen3-4b"), batch=1, seq=128).why == "a window of 128 tokens holds all 128 of a text"
    assert row("window", shallow("qwen3-4b"), batch=1, seq=129).applies


def test_one_layer_has_no_first_half_to_freeze():
    assert (
        row("freeze", shallow("gpt2", 1), batch=1, seq=8).why
        == "the model has one layer, of which there is no first half"
    )


@pytest.mark.parametrize(("name", "usual"), [("gpt2", True), ("gemma-3-27b", False)])
def test_wider_heads_keep_a_scale_of_the_models_own(name, usual):
    config = shallow(name)
    attention = config.blocks[0].attention
    made = _widen_heads(Setup(config=config, workload=Workload(batch=1, seq=8)), None)
    scale = made.setup.config.blocks[0].attention.scale
    assert scale == pytest.approx((2 * attention.head_dim) ** -0.5 if usual else attention.scale)
