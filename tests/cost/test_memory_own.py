"""Saved bytes of our own blocks, by reference and by torch's kernels, against real steps."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.model import ModelConfig, OutputHead
from headwise.cost.memory import predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.workload import Workload
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn import multihead
from headwise.nn.block import Block
from headwise.ops.results import AttentionOutput

VOCAB, WIDTH, HEADS = 97, 24, 3
IMPLS = {"eager": "reference", "sdpa": "sdpa"}


class Stack(nn.Module):
    """The model around our blocks that a config of model_type "headwise" stands for."""

    def __init__(self, config, impl):
        super().__init__()
        norm = nn.LayerNorm if config.blocks[0].norm == "layernorm" else nn.RMSNorm
        width = config.embed_dim
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.position_table_size, width) if config.position_table_size else None
        self.dropout = nn.Dropout(config.embedding_dropout_p)
        self.blocks = nn.ModuleList([Block(block, impl=impl) for block in config.blocks])
        self.norm = norm(width) if config.final_norm else nn.Identity()
        self.head = nn.Linear(width, config.head.num_outputs, bias=False) if config.head else nn.Identity()

    def forward(self, ids):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1]))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def describe(
    *, dropout_p=0.0, norm="layernorm", placement="pre", feed_forward=None, positions=0, head=None, **attention
):
    attention = {"embed_dim": WIDTH, "num_heads": HEADS, "dropout_p": dropout_p} | attention
    block = BlockConfig(
        attention=AttentionConfig(**attention),
        feed_forward=FeedForwardConfig(embed_dim=WIDTH, hidden_dim=37, **(feed_forward or {})),
        norm=norm,
        norm_placement=placement,
        dropout_p=dropout_p,
    )
    return ModelConfig(
        name="own",
        model_type="headwise",
        kind="decoder",
        embed_dim=WIDTH,
        vocab_size=VOCAB,
        max_positions=53,
        position_table_size=positions,
        embedding_dropout_p=dropout_p,
        blocks=(block, block),
        final_norm=placement == "pre",
        head=head,
    )


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
    "mixed mask": {"mask": Causal() & ~SlidingWindow(3) | SlidingWindow(1)},
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # autocast leaves rms_norm alone on CPU
@pytest.mark.parametrize("attention", IMPLS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_bytes_of_our_blocks_are_measured_ones_to_the_byte(variant, attention):
    for dropout_p, precision in ((0.0, "fp32"), (0.1, "fp32"), (0.1, "bf16"), (0.1, "amp-bf16")):
        config = describe(dropout_p=dropout_p, **VARIANTS[variant])
        workload = Workload(batch=3, seq=11, device="cpu", optimizer="sgd", attention=attention, precision=precision)
        module = Stack(config, IMPLS[attention])
        measured = measure_training_step(module, (torch.randint(0, VOCAB, (3, 11)),), workload=workload)
        predicted = predict_step(config, workload)
        assert predicted.saved_bytes == measured.saved_bytes
        assert predicted.parameter_bytes == measured.parameter_bytes


@pytest.mark.parametrize("attention", IMPLS)
@pytest.mark.parametrize("variant", ["causal", "window", "grouped", "narrow values"])
def test_selective_checkpoints_of_our_blocks_keep_what_goes_into_attention_alone(variant, attention, monkeypatch):
    original = multihead.attention

    def checkpointed(query, key, value, **settings):
        def run(*tensors):
            return original(*tensors, **settings).output

        return AttentionOutput(checkpoint(run, query, key, value, use_reentrant=False))

    monkeypatch.setattr(multihead, "attention", checkpointed)
    config = describe(dropout_p=0.1, **VARIANTS[variant])
    plain = Workload(batch=3, seq=11, device="cpu", optimizer="sgd", attention=attention)
    module = Stack(config, IMPLS[attention])
    measured = measure_training_step(module, (torch.randint(0, VOCAB, (3, 11)),), workload=plain)
    predicted = predict_step(config, replace(plain, checkpoint="selective"))
    assert predicted.saved_bytes == measured.saved_bytes < predict_step(config, plain).saved_bytes


def test_one_kernel_normalises_on_cuda_and_keeps_what_came():
    """On CPU the norm's parts keep its input and what it becomes before the weight; on CUDA, the input alone."""
    config = describe(norm="rmsnorm")
    saved = {}
    for device in ("cpu", "cuda"):
        workload = Workload(batch=2, seq=7, device=device, attention="eager")
        saved[device] = predict_step(config, workload).saved_bytes
    norms = 2 * len(config.blocks) + 1
    assert saved["cpu"] - saved["cuda"] == norms * 4 * 2 * 7 * WIDTH
