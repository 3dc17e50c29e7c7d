"""What `cost` answers with: counts with units, and the ledger of tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from headwise.results import Result, format_bytes


@dataclass(frozen=True, kw_only=True)
class ParameterCount(Result):
    """Number of weights by part; tied weights count once.

    `attention`: the four projections with their biases. `norm`: every norm, q/k norms too. `embedding`: token, position
    and type tables and an untied output head (that head alone again in `output_head`). `feed_forward`: with the router.
    `other`: pooler, classifier and all the rest.
    """

    attention: int
    feed_forward: int
    embedding: int
    norm: int
    other: int
    output_head: int = 0

    @property
    def total(self) -> int:
        """All weights."""
        return self.attention + self.feed_forward + self.embedding + self.norm + self.other

    def to_dict(self) -> dict[str, object]:
        """As every result, with the total."""
        return {"total": self.total, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class FlopCount(Result):
    """Floating-point operations of matrix products, one multiply-add = 2.

    `dense` counts the full square of every attention (comparable with profilers and MFU), `attended` the pairs that the
    mask allows. `attended` is None where the pairs could not be known. `uncounted`: operations that ran and may hold
    products, but whose cost is not known, by name.
    """

    dense: int
    attended: int | None
    uncounted: tuple[str, ...] = ()

    @property
    def macs(self) -> "MacCount":
        """The same in multiply-adds (MACs): half as many."""
        return MacCount(dense=self.dense // 2, attended=None if self.attended is None else self.attended // 2)


@dataclass(frozen=True, kw_only=True)
class MacCount(Result):
    """Multiply-adds of matrix products: FLOPs / 2. What several profilers print under the name of FLOPs."""

    dense: int
    attended: int | None


@dataclass(frozen=True, kw_only=True)
class StepFlops(Result):
    """FLOPs of one optimizer step by what they are for; each dense and attended.

    `model`: forward and backward as the mathematics has them, of every layer alike (MFU is reckoned from these): 3 x
    forward; beside adapters frozen weights have no gradient, so 2 x forward for their products and 3 x for all others.
    `hardware`: all that is run: `forward`, `backward` with the scores that a fused kernel computes again and without
    what no gradient flows through, and `recomputed` by checkpointing (HFU). Of a prefill both are the forward pass.
    """

    forward: FlopCount
    backward: FlopCount
    recomputed: FlopCount
    model: FlopCount
    hardware: FlopCount


@dataclass(frozen=True, kw_only=True)
class KvLayer(Result):
    """What one layer keeps between calls, for all texts of a batch.

    `kind`: "full" (keys and values of all tokens), "window" (of the latest), "latent" (one vector a token for both),
    "shared" (those of another layer), "linear" (a state of fixed size), "cross" (of an encoder's output).
    `tokens`: kept per text. `bytes_per_token`: of one text. `state_bytes`: of one text, whatever its length.
    `bytes`: what the tokens and the state take. `reserved_bytes`: the same with tokens rounded up to whole pages.
    `unified_bytes`: reserved by an engine that gives every layer pages for the whole length, windowed ones too.
    """

    layer: int
    kind: Literal["full", "window", "latent", "shared", "linear", "cross"]
    tokens: int
    bytes_per_token: int
    state_bytes: int
    bytes: int
    reserved_bytes: int
    unified_bytes: int


@dataclass(frozen=True, kw_only=True)
class LayerKind(Result):
    """Layers that are alike: how many there are, and what one of them has and does.

    `forward`: FLOPs of one such layer in one forward pass. `kv_cache_bytes`: what it keeps between calls; None for a
    layer of an encoder.
    """

    name: str
    num_layers: int
    parameters: ParameterCount
    forward: FlopCount
    kv_cache_bytes: int | None


Kind = Literal["parameter", "gradient", "optimizer", "saved", "temporary", "input"]


@dataclass(frozen=True, kw_only=True)
class LedgerEntry(Result):
    """One tensor: `born` and `freed` are indices into the ledger's moments; `freed` None = it lives on.

    `line`: the line of the user's code that made it, where a step was tracked.
    """

    name: str
    kind: Kind
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    owner: str
    born: int
    freed: int | None
    line: str | None = None

    @property
    def is_kv_cache(self) -> bool:
        """Whether it is keys or values that are kept between calls, or their scales; its kind says how it lives."""
        return self.kind in ("temporary", "input") and self.name.startswith(("cached ", "scales of cached "))

    def is_alive(self, moment: int) -> bool:
        """Whether the tensor holds memory at the moment with this index (born <= moment < freed)."""
        return self.born <= moment and (self.freed is None or moment < self.freed)


@dataclass(frozen=True, kw_only=True)
class Ledger(Result):
    """Every tensor of a step with its life; peak = the maximum over moments, never a sum of categories."""

    moments: tuple[str, ...]
    entries: tuple[LedgerEntry, ...]

    def alive(self, moment: int) -> list[LedgerEntry]:
        """Return the tensors alive at a moment, largest first."""
        return sorted((e for e in self.entries if e.is_alive(moment)), key=lambda entry: -entry.bytes)

    @cached_property
    def bytes_by_moment(self) -> tuple[int, ...]:
        """The bytes alive at each moment."""
        spans = ((entry.born, entry.freed, entry.bytes) for entry in self.entries)
        return tuple(bytes_at_moments(len(self.moments), spans))

    def bytes_at(self, moment: int) -> int:
        """Return the bytes alive at a moment."""
        return self.bytes_by_moment[moment]

    @property
    def peak(self) -> int:
        """Index of the moment with the most bytes alive (the first of equals)."""
        return self.bytes_by_moment.index(max(self.bytes_by_moment))

    def to_text(self, *, num_largest: int = 10) -> str:
        """Say when the peak is, and which tensors are the largest then; the whole ledger is in `to_dict`."""
        if not self.moments:
            return "no moment was recorded"
        alive = self.alive(self.peak)
        rows = [f"  {format_bytes(one.bytes):>10}  {one.owner} {one.name} {one.shape} {one.dtype}" for one in alive]
        rest = [f"  and {len(alive) - num_largest:,} more"] if len(alive) > num_largest else []
        head = f"peak {format_bytes(self.bytes_at(self.peak))} at {self.moments[self.peak]}: {len(alive):,} tensors"
        return "\n".join([head, *rows[:num_largest], *rest])

    def kind_bytes(self, kind: Kind) -> int:
        """Return the bytes of all tensors of one kind, whenever alive."""
        return sum(entry.bytes for entry in self.entries if entry.kind == kind)


def bytes_at_moments(num_moments: int, spans: Iterable[tuple[int, int | None, int]]) -> list[int]:
    """Add up the bytes alive at each moment, of spans (born, freed or None, bytes), in time linear in their number."""
    changes = [0] * (num_moments + 1)
    for born, freed, num_bytes in spans:
        changes[born] += num_bytes
        changes[num_moments if freed is None else freed] -= num_bytes
    return list(accumulate(changes[:-1]))


@dataclass(frozen=True, kw_only=True)
class StepMemory(Result):
    """Memory of one training step in bytes; predicted and measured share this type, so that they subtract.

    `saved_bytes`: distinct storages kept for backward, parameters excluded. `peak_bytes`: most bytes alive at once,
    parameters, gradients and optimizer states included. `reserved_bytes`: what torch's CUDA allocator holds from the
    driver at most; None on CPU, and where it was not asked for.
    """

    parameter_bytes: int
    saved_bytes: int
    peak_bytes: int
    peak_moment: str
    reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredStep(StepMemory):
    """A step that was run, with what only a run can tell; None where it was not asked for or does not apply.

    `seconds`: median of the steady steps that were timed. `flops`: of all matrix products of forward, loss and
    backward, recomputation included ("hardware" FLOPs, one multiply-add = 2); `uncounted`: operations that ran and may
    hold products, but whose cost is not known. `reserved_bytes`: what torch's CUDA
    allocator held from the driver at most.
    """

    seconds: float | None = None
    flops: int | None = None
    uncounted: tuple[str, ...] = ()
    reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rates(Result):
    """Peak rates of a device as its vendor states them: dense matrix products in FLOP/s by dtype, memory in bytes/s.

    None: the device has no units for that dtype (`bf16` on a V100), or the figure is not published. `tf32`: of tensor
    cores on float32 inputs, which torch uses only when asked to.
    """

    fp32: float | None
    tf32: float | None
    fp16: float | None
    bf16: float | None
    bytes_per_second: float
    source: str
    date: str


NO_FUSED_KERNELS = (0, 0)
"""A compute capability for which torch has no fused attention kernel, so that its rules give the math kernel."""


@dataclass(frozen=True, kw_only=True)
class Device(Result):
    """A device from the catalogue: what the driver reports as usable, with its source and the date it was read.

    `compute_capability` is the CUDA device's, None elsewhere; which kernels run depends on it. `rates`: None where they
    are not known.
    """

    name: str
    description: str
    memory_bytes: int
    kind: Literal["cuda", "cpu", "rocm", "mps", "tpu"]
    source: str
    date: str
    compute_capability: tuple[int, int] | None = None
    rates: Rates | None = None

    @property
    def step_device(self) -> Literal["cpu", "cuda"]:
        """Whose kernels a step on it is reckoned with: a CPU's own, for all others CUDA's."""
        return "cpu" if self.kind == "cpu" else "cuda"

    @property
    def step_capability(self) -> tuple[int, int]:
        """The CUDA device whose attention kernels a step on it is reckoned with.

        (8, 0) where ROCm's kernels, which are much like CUDA's, or a CPU's own serve. `NO_FUSED_KERNELS` where none is
        known to save memory (MPS, TPU): attention keeps its score matrix then, so that what fits so fits with any.
        """
        if self.compute_capability is not None:
            return self.compute_capability
        return NO_FUSED_KERNELS if self.kind in ("mps", "tpu") else (8, 0)


@dataclass(frozen=True, kw_only=True)
class Unmodelled(Result):
    """Memory in bytes that is needed beside the tensors of a step, between two bounds, and where these are from."""

    what: str
    low: int
    high: int
    source: str


@dataclass(frozen=True, kw_only=True)
class FitVerdict(Result):
    """Whether a step fits a device: "yes", "tight" (between the bounds of what is not modelled) or "no".

    `reserved_bytes`: what torch's CUDA allocator reserves for the step's tensors; None where it was not replayed.
    """

    fits: Literal["yes", "tight", "no"]
    device: Device
    peak_bytes: int
    unmodelled_low_bytes: int
    unmodelled_high_bytes: int
    reason: str
    reserved_bytes: int | None = None
