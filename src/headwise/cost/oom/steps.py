"""Which steps a message may come from, and what is learned of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal, TypeVar

from headwise.config.attention import AttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.devices import DEVICES
from headwise.cost.oom.births import LearnedStep
from headwise.cost.oom.card import SAME_CARD, find_card
from headwise.cost.oom.learning import learn_step
from headwise.cost.oom.results import OomMessage
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import SlidingWindow
from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class Hints(Result):
    """What is known of the step, each a setting of `Workload`; None = not known."""

    phase: Literal["train", "prefill", "decode"] | None = None
    precision: Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"] | None = None
    attention: Literal["sdpa", "eager"] | None = None
    checkpoint: Literal["none", "selective", "full"] | None = None
    loss: Literal["sum", "cross_entropy", "chunked_cross_entropy"] | None = None
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "adamw8bit", "adafactor", "lion", "muon"] | None = None
    optimizer_step: Literal["foreach", "fused", "loop"] | None = None
    compute_capability: tuple[int, int] | None = None
    dropout: bool = True


@dataclass(frozen=True)
class Suspect:
    """A step that a message may come from: how likely it is, what is learned of it, and the lengths that it is for."""

    prior: float
    step: LearnedStep
    least_seq: int
    most_seq: int | None

    def has_seq(self, seq: int | None) -> bool:
        """Whether the step is for texts of this length."""
        return seq is None or (self.least_seq <= seq and (self.most_seq is None or seq <= self.most_seq))


MAX_BIRTHS = 12_000  # allocations that are learned of a model, the likeliest steps first; about half a second

Setting = TypeVar("Setting")
Phase = Literal["train", "prefill", "decode"]
Precision = Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
Attention = Literal["sdpa", "eager"]
Checkpoint = Literal["none", "selective", "full"]

# How often steps are of each kind, as far as nothing says which: judgement, not measurement.
_PHASES: tuple[tuple[Phase, float], ...] = (("train", 0.65), ("prefill", 0.25), ("decode", 0.1))
_PHASES_OF_ENCODERS: tuple[tuple[Phase, float], ...] = (("train", 0.85), ("prefill", 0.15))
_PRECISIONS: tuple[tuple[Precision, float], ...] = (("fp32", 0.35), ("bf16", 0.35), ("amp-bf16", 0.3))
_PRECISIONS_BEFORE_AMPERE: tuple[tuple[Precision, float], ...] = (("fp32", 0.35), ("fp16", 0.35), ("amp-fp16", 0.3))
_ATTENTIONS: tuple[tuple[Attention, float], ...] = (("sdpa", 0.6), ("eager", 0.4))
_CHECKPOINTS: tuple[tuple[Checkpoint, float], ...] = (("none", 0.7), ("full", 0.3))


def has_bfloat16(capability: tuple[int, int]) -> bool:
    """Tell whether steps in bfloat16 are usual on a device: NVIDIA's reckon in it since Ampere."""
    return capability >= (8, 0)


def compute_capability_of(message: OomMessage) -> tuple[int, int]:
    """Return the compute capability of the card whose capacity the message gives, else (8, 0).

    Where several cards have about that capacity it is that of the nearest: a wrong guess only misleads the order.
    """
    capacity = message.capacity_bytes
    try:
        card = find_card(message)
    except ConfigError:  # no device has so little, or so much
        return (8, 0)
    if card is not None and card.compute_capability is not None:
        return card.compute_capability
    near = [
        (abs(one.memory_bytes - capacity), one.compute_capability)
        for one in DEVICES.values()
        if capacity and one.kind == message.backend and one.compute_capability is not None
    ]
    distance, capability = min(near, default=(0, None))
    return (8, 0) if capability is None or not capacity or distance > SAME_CARD * capacity else capability


@lru_cache(maxsize=16)  # about 5 MB each
def list_suspects(
    config: ModelConfig, hints: Hints, device: Literal["cpu", "cuda"], capability: tuple[int, int]
) -> tuple[Suspect, ...]:
    """Learn every step of a model that a message may come from; none where its family has no closed form."""
    windows = [
        block.attention.mask.window_size
        for block, _ in config.block_groups
        if isinstance(block.attention, AttentionConfig) and isinstance(block.attention.mask, SlidingWindow)
    ]
    suspects: list[Suspect] = []
    workloads = _list_workloads(config, hints, device, capability)
    for prior, workload in sorted(workloads, key=lambda pair: -pair[0]):
        if sum(len(one.step.births) for one in suspects) > MAX_BIRTHS:
            break
        has_regimes = bool(windows) and workload.attention == "sdpa"
        regimes: list[tuple[bool, int, int | None]] = [(True, min(windows) if has_regimes else 1, None)]
        if has_regimes and min(windows) > 1:
            regimes.append((False, 1, min(windows) - 1))
        for reaches_windows, least, most in regimes:
            try:
                step = learn_step(config, workload, reaches_windows=reaches_windows)
            except (ConfigError, UnsupportedError):
                continue  # transformers has no such model, or not this way
            suspects.append(Suspect(prior, step, least, most))
    return tuple(suspects)


def _list_workloads(
    config: ModelConfig, hints: Hints, device: Literal["cpu", "cuda"], capability: tuple[int, int]
) -> list[tuple[float, Workload]]:
    """Return the steps that agree with the hints, each with its prior."""
    is_language_model = config.head is not None and config.head.kind == "language_model"
    precisions = _PRECISIONS if has_bfloat16(capability) else _PRECISIONS_BEFORE_AMPERE
    phases = _PHASES_OF_ENCODERS if config.kind == "encoder" else _PHASES
    found = []
    for (phase, of_phase), (precision, of_precision), (attention, of_attention), (checkpoint, of_checkpoint) in product(
        _known(hints.phase, phases),
        _known(hints.precision, precisions),
        _known(hints.attention, _ATTENTIONS),
        _known(hints.checkpoint, _CHECKPOINTS),
    ):
        if phase != "train" and checkpoint not in ("none", hints.checkpoint):
            continue
        workload = Workload(
            batch=1,
            seq=1,
            phase=phase,
            precision=precision,
            attention=attention,
            checkpoint=checkpoint,
            loss=hints.loss or ("cross_entropy" if is_language_model else "sum"),
            device=device,
            compute_capability=hints.compute_capability or capability,
            optimizer=hints.optimizer or "adamw",
            optimizer_step=hints.optimizer_step,  # type: ignore[arg-type]  # None: the usual one
            dropout=hints.dropout,
        )
        prior = of_phase * of_precision * of_attention * (of_checkpoint if phase == "train" else 1.0)
        found.append((prior, workload))
    return found


def _known(hint: Setting | None, usual: Sequence[tuple[Setting, float]]) -> Sequence[tuple[Setting, float]]:
    return usual if hint is None else ((hint, 1.0),)
