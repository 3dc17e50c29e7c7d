"""The least time of a step by the roofline: what must be computed, what must be moved, and the longer of the two."""

from dataclasses import dataclass, replace
from typing import Literal

from headwise.config.attention import ALiBi, AttentionConfig, T5Bias
from headwise.config.block import AnyAttention, BlockConfig, FeedForwardConfig
from headwise.config.dtypes import DTYPE_BYTES
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.flops import decode_flops, layers_of, output_flops
from headwise.cost.kv import kv_cache_bytes
from headwise.cost.layer_flops import block_work
from headwise.cost.parameters import block_parameters, feed_forward_parameters
from headwise.cost.planning.device_part import DevicePart, part_of_step
from headwise.cost.planning.results import TimeEstimate
from headwise.cost.results import Device, FlopCount, Ledger, Rates
from headwise.cost.sharding.results import Sharding
from headwise.cost.step.attention import is_windowed
from headwise.cost.step.layer_kernel import kernel_of
from headwise.cost.step.own_attention import plan_kernel
from headwise.cost.step.run import HeadsConfig
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Workload
from headwise.masks.form import simplest_form

_RATE_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_Phase = Literal["forward", "backward", "optimizer step"]


@dataclass(frozen=True, slots=True)
class _Work:
    flops: int
    num_bytes: int


def estimate_time(
    config: ModelConfig, workload: Workload, device: Device, ledger: Ledger, *, sharding: Sharding | None = None
) -> TimeEstimate | None:
    """Estimate the least time of a step, or of a prefill or one token of a decode, on one device.

    Each phase (forward; backward with what checkpointing computes again; optimizer step) takes the longer of
    `FLOPs / peak rate` and `bytes / bandwidth`, and the step takes their sum. Kernels reach a share of either, so that
    a real step takes longer.

    FLOPs: matrix products, as hardware runs them: of the pairs that the mask allows where every kernel skips the
    others, of all pairs where none does, and in proportion between. A fused kernel skips what is later than a query
    where the mask reaches it as its causal flag; with a mask tensor, and in eager attention, all pairs are computed.
    (Derived from the kernels' sources. They skip whole blocks of pairs, so a few more than the masked ones run.) The
    rate is that of the dtype of the products; of float32 that of plain cores, since torch takes no TF32 unless asked
    to. A dtype without a rate of its own runs at float32's.

    Bytes that move at least, where no cache on the chip holds them from one operation to the next:

    - weights: read once forward, and once backward for the gradients of their inputs; not below the first layer that
      learns, and not under autocast, whose copies are read instead. Tables are only looked up, and of a mixture as
      many experts are read as its tokens can reach;
    - what the step makes and the ledger names (activations, masks, copies, gradients on their way): written once in the
      phase where it is made, and read once in the phase where it is last alive. The ledger names what is alive at the
      worst instant of each moment, so what comes and goes between is left out;
    - gradients: written once in backward, and read and written again in each further pass of an accumulation;
    - optimizer step: gradients read, weights and states read and written, and its temporaries as above;
    - decode: weights and the cache read once (of 8 bits: without its scales). All else is a few vectors.

    Of a step that is spread, all is what one device computes and moves in its own memory; what travels between devices
    is in neither. "tensor", "sequence": the products of its heads, hidden units and part of the vocabulary. "context":
    of its part of the tokens, in the mean; under a causal mask the device with the last tokens has more. "zero1": its
    texts, and its part of the update. "zero2", "zero3": its texts; shards are read to be gathered, and what is gathered
    is written and read as the ledger names it.

    Args:
        config: the whole model.
        workload: what is asked of it; of a step that is spread, of one device, as beside a `Sharding`.
        device: with its rates.
        ledger: of the step on one device, from `predict_ledger` or `predict_sharded_ledger`: of an accumulation, its
            last pass and the update.
        sharding: how the step is spread. Default: not at all.

    Returns:
        The estimate; None where the device has no rates, or none for the dtype.

    Source: Williams, Waterman and Patterson 2009, "Roofline"; decode: Shazeer 2019, "Fast Transformer Decoding".
    """
    dtype = workload.autocast_dtype or workload.weight_dtype
    rate, at_rate = _rate_of(device.rates, dtype)
    if device.rates is None or rate is None:
        return None
    bandwidth = device.rates.bytes_per_second
    part = part_of_step(config, workload, sharding)
    share = _skipped_share(part.config, workload)
    phases = _phases(part, ledger, share)
    flops = sum(work.flops for work in phases)
    moved_bytes = sum(work.num_bytes for work in phases)
    return TimeEstimate(
        seconds=sum(max(work.flops / rate, work.num_bytes / bandwidth) for work in phases),
        flops_seconds=flops / rate,
        bytes_seconds=moved_bytes / bandwidth,
        binds="FLOPs" if flops / rate >= moved_bytes / bandwidth else "bandwidth",
        flops=flops,
        moved_bytes=moved_bytes,
        flops_per_second=rate,
        bytes_per_second=bandwidth,
        source=f"rates: {device.rates.source} ({device.rates.date}), {at_rate}; FLOPs of {_describe_pairs(share)}",
    )


def _rate_of(rates: Rates | None, dtype: str) -> tuple[float | None, str]:
    if rates is None:
        return None, ""
    own: float | None = getattr(rates, _RATE_NAMES[dtype])
    if own is not None:
        return own, f"products in {dtype}"
    return rates.fp32, f"products in {dtype} at float32's rate, as the device has no units for them"


def _describe_pairs(share: float) -> str:
    if share == 0:
        return "all pairs of a query and a key"
    if share == 1:
        return "the pairs that the masks allow, as the kernels skip the others"
    return "the pairs that the masks allow in layers whose kernel skips the others, and of all pairs elsewhere"


def _phases(part: DevicePart, ledger: Ledger, share: float) -> list[_Work]:
    config, workload = part.config, part.workload
    if workload.phase == "decode":
        flops = _run(decode_flops(config, batch=workload.batch, seq=workload.seq), share)
        flops -= _elsewhere(part, output_flops(config, batch=workload.batch, seq=1))
        return [_Work(flops, _weight_bytes(part, ledger) + _cache_bytes(config, workload))]
    flops_of = step_flops(config, workload)
    moved = _moved_bytes(part, ledger)
    head = workload.accumulation * output_flops(config, batch=workload.batch, seq=workload.seq)
    forward = _run(flops_of.forward, share) - _elsewhere(part, head)
    if workload.phase == "prefill":
        return [_Work(forward // part.token_parts, moved["forward"])]
    # Two products of the head, but of a tied one that is frozen with its table one; and the chunked loss' again.
    is_frozen = workload.frozen_layers > 0 and config.head is not None and config.head.tied
    head *= (1 if is_frozen else 2) + (workload.loss == "chunked_cross_entropy")
    backward = _run(flops_of.backward, share) + _run(flops_of.recomputed, share) - _elsewhere(part, head)
    return [
        _Work(forward // part.token_parts, moved["forward"]),
        _Work(backward // part.token_parts, moved["backward"]),
        _Work(0, moved["optimizer step"]),
    ]


def _elsewhere(part: DevicePart, head_flops: int) -> int:
    """Return the FLOPs of the head that other devices run."""
    return head_flops - head_flops // part.head_parts


def _run(flops: FlopCount, share: float) -> int:
    """Return the FLOPs that run where a share of what masks hide is skipped."""
    attended = flops.dense if flops.attended is None else flops.attended
    return flops.dense - round(share * (flops.dense - attended))


def _skipped_share(config: ModelConfig, workload: Workload) -> float:
    """Return how much of what masks hide in a forward pass the layers' kernels skip: 0 to 1.

    A decode skips all of it: a cache holds no more of a layer's keys than its window.
    """
    if workload.phase == "decode":
        return 1.0
    hidden = skipped = 0
    for block, num_layers, lengths in layers_of(config, batch=workload.batch, seq=workload.seq):
        total = block_work(block, lengths).total
        assert total.attended is not None  # masks of a config are structural: their pairs can always be counted
        layer_hidden = num_layers * (total.dense - total.attended)
        hidden += layer_hidden
        skipped += layer_hidden if _skips_hidden_pairs(config, block.attention, workload) else 0
    return skipped / hidden if hidden else 0.0


def _skips_hidden_pairs(config: ModelConfig, attention: AnyAttention, workload: Workload) -> bool:
    if workload.attention != "sdpa" or isinstance(attention, LinearAttentionConfig):
        return False
    if config.model_type == "headwise" and isinstance(attention, AttentionConfig):
        is_packed, kernel = plan_kernel(attention, workload)
        form = simplest_form(attention.mask, workload.seq, workload.seq)
        is_flagged = form.kind == "causal" and not is_packed and not isinstance(attention.position, ALiBi | T5Bias)
        return kernel.name == "blocked" or (kernel.is_fused and is_flagged)
    if _is_reckoned_eager(attention):
        return False
    has_mask_tensor = config.model_type == "t5" or is_windowed(attention, workload)
    return not has_mask_tensor and kernel_of(config.model_type, attention, workload).is_fused


def _is_reckoned_eager(attention: HeadsConfig) -> bool:
    """Tell whether a layer's scores get what no fused kernel takes, as in `step_flops`."""
    if not isinstance(attention, AttentionConfig):
        return False
    return attention.sink or attention.softcap is not None or isinstance(attention.position, ALiBi)


def _moved_bytes(part: DevicePart, ledger: Ledger) -> dict[_Phase, int]:
    config, workload = part.config, part.workload
    moved = _ledger_bytes(ledger)
    weight_bytes = _weight_bytes(part, ledger)
    gradient_bytes, state_bytes = ledger.kind_bytes("gradient"), ledger.kind_bytes("optimizer")
    moved["forward"] += weight_bytes
    if workload.autocast_dtype is None and not part.is_gathered:
        moved["backward"] += weight_bytes - _below_first_learner_bytes(config, workload)
    moved["forward"] *= workload.accumulation
    moved["backward"] *= workload.accumulation
    moved["backward"] += (2 * workload.accumulation - 1) * gradient_bytes
    # Gradients have the dtype of their weights: they are read, and their weights read and written.
    moved["optimizer step"] += 3 * (gradient_bytes // part.update_parts) + 2 * state_bytes
    return moved


def _ledger_bytes(ledger: Ledger) -> dict[_Phase, int]:
    """Add up, by phase, one write and one read of all that a step makes, and one read of its inputs."""
    phases = [_phase_of(moment) for moment in ledger.moments]
    moved: dict[_Phase, int] = {"forward": 0, "backward": 0, "optimizer step": 0}
    for entry in ledger.entries:
        if entry.kind in ("parameter", "gradient", "optimizer"):
            continue
        if entry.kind != "input":
            moved[phases[entry.born]] += entry.bytes
        last = len(phases) if entry.freed is None else entry.freed
        moved["forward" if entry.kind == "input" else phases[last - 1]] += entry.bytes
    return moved


def _phase_of(moment: str) -> _Phase:
    if moment.startswith("backward"):
        return "backward"
    return "optimizer step" if moment.startswith("optimizer step") else "forward"


def _weight_bytes(part: DevicePart, ledger: Ledger) -> int:
    """Return the bytes of the weights that a forward pass reads: all but tables and experts that no token reaches.

    Shards are read whole, to be gathered.
    """
    config, workload = part.config, part.workload
    if part.is_gathered:
        return ledger.kind_bytes("parameter")
    unread = config.position_table_size + config.num_token_types
    if config.head is None or not config.head.tied:
        unread += config.vocab_size // part.head_parts
    if config.encoder is not None:
        unread += config.encoder.position_table_size
    tokens = workload.batch * (1 if workload.phase == "decode" else workload.seq // part.token_parts)
    idle = sum(num * _idle_parameters(block.feed_forward, tokens) for block, num in _block_groups(config))
    number_bytes = DTYPE_BYTES[workload.weight_dtype]
    return ledger.kind_bytes("parameter") - number_bytes * (unread * config.embed_dim + idle)


def _block_groups(config: ModelConfig) -> tuple[tuple[BlockConfig, int], ...]:
    return (*(config.encoder.block_groups if config.encoder else ()), *config.block_groups)


def _idle_parameters(feed_forward: FeedForwardConfig, tokens: int) -> int:
    """Count the weights of experts that no token goes through even where tokens are spread as widely as can be."""
    num_idle = feed_forward.num_experts - min(feed_forward.num_experts, tokens * feed_forward.num_active_experts)
    one = replace(
        feed_forward,
        num_experts=1,
        num_active_experts=1,
        router_bias=False,
        shared_hidden_dim=0,
        shared_bias=False,
        shared_gate=False,
    )
    return num_idle * feed_forward_parameters(one)


def _below_first_learner_bytes(config: ModelConfig, workload: Workload) -> int:
    """Return the bytes of frozen layers below the first that learns, an encoder first: no gradient flows through."""
    if workload.frozen_layers == 0:
        return 0
    encoder = config.encoder.blocks if config.encoder is not None else ()
    blocks = (*encoder, *config.blocks[: workload.frozen_layers])
    return DTYPE_BYTES[workload.weight_dtype] * sum(block_parameters(block).total for block in blocks)


def _cache_bytes(config: ModelConfig, workload: Workload) -> int:
    dtype = "int8" if workload.kv_cache == "int8" else workload.weight_dtype
    return kv_cache_bytes(config, batch=workload.batch, seq=workload.seq, dtype=dtype) or 0
