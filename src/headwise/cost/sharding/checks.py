"""Checks of what a sharding needs of a model and a workload."""

from headwise.config.attention import ALiBi, AttentionConfig, T5Bias
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.sharding.results import Sharding
from headwise.cost.step.attention import choose_kernel, is_windowed
from headwise.cost.step.own_attention import plan_kernel
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError


def require_optimizer_of_shards(workload: Workload, sharding: Sharding) -> None:
    """Raise UnsupportedError if the optimizer needs whole weights, and a device has a part of each."""
    if workload.optimizer == "muon":
        raise UnsupportedError(
            f"Muon turns whole matrices, and sharding {sharding.kind!r} leaves each device a part of them: "
            "take another optimizer, or sharding 'zero1'"
        )


def require_split(config: ModelConfig, workload: Workload, sharding: Sharding) -> None:
    """Raise UnsupportedError if a model's heads, or with "sequence" its tokens, cannot be shared out."""
    if workload.lora is not None:
        raise UnsupportedError(f"adapters are not spread by sharding {sharding.kind!r}: take sharding 'zero3'")
    if sharding.kind == "sequence":
        _require_equal_parts(workload, sharding)
        if config.pooler or (config.head is not None and not config.head.per_token):
            raise UnsupportedError(
                f"the tokens of a text are shared out, and {config.name} reads the first one alone: take "
                "sharding 'tensor'"
            )


def require_ring(config: ModelConfig, workload: Workload, sharding: Sharding) -> None:
    """Raise UnsupportedError if attention cannot be done in parts whose keys and values pass by.

    It takes a fused kernel, which gives the logsumexp that parts are merged by, and no mask but the causal one.
    """
    _require_equal_parts(workload, sharding)
    if config.encoder is not None or config.patches is not None:
        what = "an encoder beside a decoder" if config.encoder is not None else "patches"
        raise UnsupportedError(f"sharding 'context' needs a model of texts in one stack; {config.name} has {what}")
    if workload.attention != "sdpa":
        raise UnsupportedError(f"sharding 'context' needs attention 'sdpa'; got {workload.attention!r}")
    for block, _ in config.block_groups:
        attention = block.attention
        if not isinstance(attention, AttentionConfig | LatentAttentionConfig):
            raise UnsupportedError(
                f"sharding 'context' needs attention in every layer; got a layer with {type(attention).__name__}"
            )
        if is_windowed(attention, workload):
            raise UnsupportedError(
                f"sharding 'context' needs causal or full attention; got {attention.mask!r} at {workload.seq} tokens"
            )
        if isinstance(attention, AttentionConfig) and (
            attention.sink or isinstance(attention.position, ALiBi | T5Bias)
        ):
            what = "a sink" if attention.sink else f"position {attention.position!r}"
            raise UnsupportedError(f"sharding 'context' needs scores of keys alone, with no bias; got {what}")
        if config.model_type == "headwise" and isinstance(attention, AttentionConfig):
            kernel = plan_kernel(attention, workload)[1]
        else:
            kernel = choose_kernel(attention, workload)[0]
        if not kernel.is_fused:
            raise UnsupportedError(
                f"sharding 'context' needs a fused kernel; got {kernel.name!r}: {'; '.join(kernel.reasons)}"
            )


def _require_equal_parts(workload: Workload, sharding: Sharding) -> None:
    if workload.phase == "decode":
        raise UnsupportedError(f"sharding {sharding.kind!r} spreads the tokens of a text; a decode has one")
    if workload.seq % sharding.num_devices:
        raise UnsupportedError(
            f"sharding {sharding.kind!r} needs a length that the number of devices divides; "
            f"got {workload.seq} and {sharding.num_devices}"
        )
