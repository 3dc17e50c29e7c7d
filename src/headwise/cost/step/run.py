"""Run: one forward pass on a tape, and Family: how the models of one implementation do it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headwise.config.attention import AttentionConfig
from headwise.config.block import AnyAttention
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.config.position import Rotary
from headwise.cost.step import operations as ops
from headwise.cost.step.norms import rms_norm
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.cost.workload import Workload
from headwise.masks.patterns import Mask, SlidingWindow

Weights = Mapping[str, Value]
"""Tensors by name: weights of a layer or of what stands around the layers, inputs, buffers."""

Part = Literal[
    "num_kv_heads",
    "head_dim",
    "v_head_dim",
    "qk_norm over head",
    "qk_norm over projection",
    "softcap",
    "any mask",
    "rotary_dim",
    "interleaved",
    "cross_attention",
    "parallel",
    "shared_norm",
    "own positions",
    "gated",
    "plain",
    "sink",
    "any sink",
    "output_gate",
    "shared expert",
    "shared_gate",
    "biases of experts",
    "dropout_p",
    "feed-forward dropout_p",
    "position_table_size",
    "pooler",
]
"""What models of a family may have and need not: settings of a config by name, other than those that all have.

All layers of a family with "sink" have one, and with "any sink" some may; with "own positions" each layer makes its own
angles and owns its own table of biases.
"""

HeadsConfig = AttentionConfig | LatentAttentionConfig
"""Kinds of layer that compute scores of pairs of tokens."""


def attention_of(block: BlockConfig) -> AttentionConfig:
    """Return the attention of a block of a family without latent vectors, which `family_of` has checked."""
    assert isinstance(block.attention, AttentionConfig), "checked by family_of"
    return block.attention


def window_of(config: AnyAttention) -> int | None:
    """Return how many keys a query of a layer with a sliding window sees, itself included; None: all earlier ones."""
    return config.mask.window_size if isinstance(config.mask, SlidingWindow) else None


def key_len_of(config: AnyAttention, workload: Workload) -> int:
    """Return how many keys a layer is given: all, or in a decode those that its cache holds."""
    window = window_of(config)
    return workload.seq if window is None or workload.phase != "decode" else min(workload.seq, window)


@dataclass(frozen=True)
class Family:
    """How one family of models embeds its tokens, runs a layer, and ends.

    Args:
        embed: (run, config, weights, inputs, buffers) -> hidden states (B, T, E).
        layer: (run, block, weights, hidden states) -> hidden states.
        layer_weights: the parts of a layer in the order in which the module lists their weights.
        fused: projections that stand for several: "qkv_proj", "gate_up_proj".
        weights_turned: weights of projections are (inputs, outputs), as GPT-2's.
        rms_norm: (name, x, weight) -> the root-mean-square norm of x, as its module computes it.
        rotates_in_float32: queries and keys are turned in float32 and cast back (OLMo 2).
        has_sdpa: transformers has the family with attention "sdpa".
        makes_masks: the body makes the mask tensors of all layers; else each layer makes its own.
        attention: kinds of its layers that mix tokens.
        positions: how its layers may know where a token is.
        norm_placements: where the norms of its layers may stand.
        tables: sizes of the config that it needs.
        buffers: what a model holds besides its weights.
        parts: what else its forward pass has; configs with another part are refused.
        has_experts: its feed-forward may be a mixture of experts.
        drops_last_state: dropout follows the final norm (T5).
        drops_before_pooler: dropout precedes the pooler of a classifier (RoBERTa).
        has_plain_head: its head is one projection, of each token's state or of the mean of a text's (ours).
        finish: (run, config, weights, inputs, last hidden state) -> what the model returns in its place.
    """

    embed: Callable[["Run", ModelConfig, Weights, Weights, Weights], Value]
    layer: Callable[["Run", BlockConfig, Weights, Value], Value]
    layer_weights: tuple[str, ...]
    fused: frozenset[str] = frozenset()
    weights_turned: bool = False
    rms_norm: Callable[[str, Value, Value], Value] = rms_norm
    rotates_in_float32: bool = False
    has_sdpa: bool = True
    makes_masks: bool = True
    attention: tuple[type[AnyAttention], ...] = (AttentionConfig,)
    positions: tuple[type, ...] = (Rotary,)
    norm_placements: tuple[str, ...] = ("pre",)
    tables: tuple[str, ...] = ("vocab_size",)
    buffers: tuple[str, ...] = ()
    parts: frozenset[Part] = frozenset()
    has_experts: bool = False
    drops_last_state: bool = False
    drops_before_pooler: bool = False
    has_plain_head: bool = False
    finish: Callable[["Run", ModelConfig, Weights, Weights, Value], Value] | None = None


@dataclass
class Run:
    """One forward pass on a tape: the tape, the workload, and what all layers share.

    `encoder_weights`: of each layer of the encoder. `masks`: the mask tensor for each structural mask, None where the
    kernel needs none. `cosine`, `sine`: of the rotary angles. `angles`: the same for each mask, where layers differ
    in them (Gemma 3). `idle`: for each mask which queries read no key, and which keys are read by none. `bias`,
    `cross_bias`: T5's on the scores. `encoded`: what cross-attention reads. `held`: what the body's own variables
    keep alive until it returns. `cached`: keys and values that the pass leaves behind. `layer`: the name of the layer
    that runs.
    """

    tape: Tape
    workload: Workload
    family: Family
    encoder_weights: Sequence[Weights] = ()
    layer: str = ""
    masks: dict[Mask, Storage | None] = field(default_factory=dict)
    cosine: Value | None = None
    sine: Value | None = None
    angles: dict[Mask, tuple[Value, Value]] = field(default_factory=dict)
    idle: dict[Mask, tuple[Storage, Storage]] = field(default_factory=dict)
    bias: Value | None = None
    cross_bias: Value | None = None
    encoded: Value | None = None
    held: list[Storage] = field(default_factory=list)
    cached: list[Storage] = field(default_factory=list)

    def leave_body(self) -> None:
        """Drop what only the body's variables held, as when it returns."""
        self.held.clear()
        self.masks.clear()
        self.angles.clear()
        self.bias = self.cross_bias = None

    def dropout(self, name: str, x: Value, p: float) -> Value:
        """Drop with probability p where the workload has dropout."""
        is_active = self.workload.phase == "train" and self.workload.dropout
        return ops.dropout(name, x, p if is_active else 0.0)
