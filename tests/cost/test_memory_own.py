"""Saved bytes of our own blocks, by reference and by torch's kernels, against real steps."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headwise.config.attention import Rotary
from headwise.config.model import OutputHead
from headwise.cost.memory import predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.workload import Workload
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn import multihead
from headwise.ops.results import AttentionOutput

VOCAB, WIDTH = 97, 24
IMPLS = {"eager": "reference", "sdpa": "sdpa"}


VARIANTS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "window": {"mask": SlidingWindow(4)},
    "grouped": {"num_kv_heads": 1, "mask": Causal()},
    "grouped, all pairs": {"num_kv_heads": 1},
    "modern": {
        "num_kv_heads": 1,
        "mask": SlidingWindow(4),
        "position": Rotary(),
        "qk_norm": True,
        "norm": "rmsnorm",
        "feed_forward": {"gated": True, "activation": "silu", "bias": False},
        "projection_bias": False,
    },
    "interleaved pairs": {"position": Rotary(pairing="interleaved"), "mask": Causal()},
    "post-norm": {"placement": "post", "feed_forward": {"activation": "relu"}},
    "narrow values": {"v_head_dim": 5},
    "with a head": {
        "positions": 53,
        "head": OutputHead(kind="language_model", num_outputs=VOCAB),
        "feed_forward": {"activation": "gelu_new"},
    },
    "dropout in the feed-forward": {"feed_forward": {"dropout_p": 0.2}},
    "mixed mask": {"mask": Causal() & ~SlidingWindow(3) | SlidingWindow(1)},
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # autocast leaves rms_norm alone on CPU
@pytest.mark.parametrize("attention", IMPLS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_bytes_of_our_blocks_are_measured_ones_to_the_byte(variant, attention, own_models):
    for dropout_p, precision in ((0.0, "fp32"), (0.1, "fp32"), (0.1, "bf16"), (0.1, "amp-bf16")):
        config = own_models.describe(dropout_p=dropout_p, **VARIANTS[variant])
        workload = Workload(batch=3, seq=11, device="cpu", optimizer="sgd", attention=attention, precision=precision)
        module = own_models.make(config, IMPLS[attention])
        measured = measure_training_step(module, (torch.randint(0, VOCAB, (3, 11)),), workload=workload)
        predicted = predict_step(config, workload)
        assert predicted.saved_bytes == measured.saved_bytes
        assert predicted.parameter_bytes == measured.parameter_bytes


@pytest.mark.parametrize("attention", IMPLS)
@pytest.mark.parametrize("variant", ["causal", "window", "grouped", "narrow values"])
def test_selective_checkpoints_of_our_blocks_keep_what_goes_into_attention_alone(
    variant, attention, monkeypatch, own_models
):
    original = multihead.attention

    def checkpointed(query, key, value, **settings):
        def run(*tensors):
            return original(*tensors, **settings).output

        return AttentionOutput(checkpoint(run, query, key, value, use_reentrant=False))

    monkeypatch.setattr(multihead, "attention", checkpointed)
    config = own_models.describe(dropout_p=0.1, **VARIANTS[variant])
    plain = Workload(batch=3, seq=11, device="cpu", optimizer="sgd", attention=attention)
    module = own_models.make(config, IMPLS[attention])
    measured = measure_training_step(module, (torch.randint(0, VOCAB, (3, 11)),), workload=plain)
    predicted = predict_step(config, replace(plain, checkpoint="selective"))
    assert predicted.saved_bytes == measured.saved_bytes < predict_step(config, plain).saved_bytes


def test_one_kernel_normalises_on_cuda_and_keeps_what_came(own_models):
    """On CPU the norm's parts keep its input and what it becomes before the weight; on CUDA, the input alone."""
    config = own_models.describe(norm="rmsnorm")
    saved = {}
    for device in ("cpu", "cuda"):
        workload = Workload(batch=2, seq=7, device=device, attention="eager")
        saved[device] = predict_step(config, workload).saved_bytes
    norms = 2 * len(config.blocks) + 1
    assert saved["cpu"] - saved["cuda"] == norms * 4 * 2 * 7 * WIDTH
