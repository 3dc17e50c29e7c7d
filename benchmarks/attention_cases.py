"""The rows of the benchmark of attention: shapes, masks, peers, and what is to be reached."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import GlobalTokens, LocalWindow
from headwise.masks.tables import Documents

NUM_HEADS, HEAD_DIM = 8, 64
OURS, SHORTER = "ours", "ours, shorter"
SDPA, SDPA_CAUSAL, SDPA_MASK, FLEX, PLAIN = "sdpa", "sdpa causal", "sdpa with that mask", "compiled flex", "plain torch"
SHRINK = 8  # by which a quick run divides lengths, windows, blocks and documents


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one case took. `seconds`, `peak_bytes`: by contestant. `data_bytes`: of query, key, value and output."""

    seconds: dict[str, float]
    peak_bytes: dict[str, int]
    limit_seconds: float
    data_bytes: int
    length_ratio: float

    @property
    def share_of_limit(self) -> float:
        """Time that the allowed pairs alone would take, as a share of ours."""
        return self.limit_seconds / self.seconds[OURS]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure of a case and its target: at least or at most so much. `needs`: contestants that it compares."""

    what: str
    target: float
    at_least: bool
    needs: tuple[str, ...]
    value_of: Callable[[Measured], float]

    def holds(self, value: float) -> bool:
        """Tell whether a value reaches the target."""
        return value >= self.target if self.at_least else value <= self.target


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row. `extras`: further arguments of our call. `shorter`: a length that ours is compared with."""

    name: str
    seq: int
    phase: str
    mask: Callable[[int], Mask]
    checks: tuple[Check, ...]
    extras: Callable[[], dict[str, Any]] = dict
    plain: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    shorter: int | None = None
    peers: tuple[str, ...] = field(default=())

    @property
    def is_training(self) -> bool:
        """Whether backward is measured too."""
        return self.phase == "train"


class Slopes:
    """ALiBi's bias as a function of positions: `-2^(-8 (head + 1) / num_heads) (query - key)`."""

    tensors: tuple[Tensor, ...] = ()

    def __call__(self, batch: Any, head: Any, query_position: Any, key_position: Any, *tensors: Tensor) -> Any:
        return -(2.0 ** (-8.0 * (head + 1) / NUM_HEADS)) * (query_position - key_position)


def faster_than(peer: str, factor: float) -> Check:
    return Check(
        what=f"time of {peer} / ours",
        target=factor,
        at_least=True,
        needs=(peer,),
        value_of=lambda found: found.seconds[peer] / found.seconds[OURS],
    )


def at_most_times(peer: str, factor: float) -> Check:
    return Check(
        what=f"ours / time of {peer}",
        target=factor,
        at_least=False,
        needs=(peer,),
        value_of=lambda found: found.seconds[OURS] / found.seconds[peer],
    )


def near_limit(factor: float) -> Check:
    return Check(
        what="ours / time of the allowed pairs at the matmul limit",
        target=factor,
        at_least=False,
        needs=(),
        value_of=lambda found: 1 / found.share_of_limit,
    )


def no_more_memory_than(peer: str) -> Check:
    return Check(
        what=f"peak bytes of ours / {peer}",
        target=1.0,
        at_least=False,
        needs=(peer,),
        value_of=lambda found: found.peak_bytes[OURS] / found.peak_bytes[peer],
    )


def memory_of_data(factor: float) -> Check:
    return Check(
        what="peak bytes beyond inputs / query, key, value, output",
        target=factor,
        at_least=False,
        needs=(),
        value_of=lambda found: found.peak_bytes[OURS] / found.data_bytes,
    )


def linear_memory() -> Check:
    return Check(
        what="exponent of peak bytes in the length",
        target=1.1,  # 2 would be a score matrix; blocks of fixed size weigh a little more on the shorter text
        at_least=False,
        needs=(SHORTER,),
        value_of=lambda found: (
            math.log(found.peak_bytes[OURS] / found.peak_bytes[SHORTER]) / math.log(found.length_ratio)
        ),
    )


def overhead(microseconds: float) -> Check:
    return Check(
        what="microseconds over sdpa",
        target=microseconds,
        at_least=False,
        needs=(SDPA,),
        value_of=lambda found: 1e6 * (found.seconds[OURS] - found.seconds[SDPA]),
    )


def _eager(query: Tensor, key: Tensor, value: Tensor, *, softcap: float | None, sink: Tensor | None) -> Tensor:
    """Causal attention in plain operations, as models with a softcap or sinks run it without a kernel for them."""
    seq = query.shape[2]
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~torch.ones(seq, seq, dtype=torch.bool).tril(), -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., :seq] @ value


def _with_dropout(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.1)


def _with_slopes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    place = torch.arange(query.shape[2])
    head = torch.arange(query.shape[1]).reshape(-1, 1, 1)
    bias = Slopes()(0, head, place[:, None], place).float().masked_fill(place > place[:, None], -torch.inf)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])


def _sink() -> Tensor:
    return torch.linspace(-1.0, 1.0, NUM_HEADS).requires_grad_()


def cases(*, quick: bool = False, with_flex: bool = False) -> Iterator[Case]:
    """Give every row of the table, quick ones with all sizes divided by 8."""
    shrink = SHRINK if quick else 1
    long, middle, longest = 8192 // shrink, 2048 // shrink, 65536 // shrink
    window = lambda seq: SlidingWindow(256 // shrink)  # noqa: E731
    longformer = lambda seq: LocalWindow(256 // shrink, 256 // shrink) | GlobalTokens(16 // shrink)  # noqa: E731
    block = 64 // shrink
    bigbird = lambda seq: BigBird(num_blocks=seq // block, block_size=block)  # noqa: E731
    documents = lambda seq: Documents(_document_lengths(seq))  # noqa: E731

    for seq in (256, 512, 1024, 2048, 4096, 8192):
        for name, mask in (("full", Full()), ("causal", Causal())):
            for phase in ("forward", "train"):
                yield Case(
                    name=name,
                    seq=seq // shrink,
                    phase=phase,
                    mask=lambda seq, mask=mask: mask,
                    peers=(SDPA,),
                    checks=(faster_than(SDPA, 0.97), no_more_memory_than(SDPA)),
                )
    flex = (FLEX,) if with_flex else ()
    yield Case(
        name="window",
        seq=long,
        phase="forward",
        mask=window,
        peers=(SDPA_MASK, SDPA_CAUSAL, *flex),
        checks=(
            faster_than(SDPA_MASK, 10),
            faster_than(SDPA_CAUSAL, 4),
            faster_than(FLEX, 1),
            near_limit(2),
        ),
    )
    yield Case(
        name="window",
        seq=long,
        phase="train",
        mask=window,
        peers=(SDPA_CAUSAL,),
        checks=(faster_than(SDPA_CAUSAL, 6), near_limit(3)),
    )
    yield Case(
        name="window, longest",
        seq=longest,
        phase="train",
        mask=window,
        shorter=long,
        checks=(at_most_times(SHORTER, 9), memory_of_data(4), near_limit(3)),
    )
    for name, mask in (("longformer", longformer), ("bigbird", bigbird)):
        yield Case(
            name=name, seq=long, phase="train", mask=mask, peers=(SDPA_MASK,), checks=(faster_than(SDPA_MASK, 4),)
        )
    for name, mask in (("documents", documents), ("causal documents", lambda seq: Causal() & documents(seq))):
        for phase, factor in (("forward", 20), ("train", 12)):
            yield Case(
                name=name,
                seq=long,
                phase=phase,
                mask=mask,
                peers=(SDPA_MASK,),
                checks=(faster_than(SDPA_MASK, factor),),
            )
    yield from _causal_with_more(middle)
    for seq in (16, 32, 64, 128):
        for name, mask in (("small full", Full()), ("small causal", Causal())):
            yield Case(
                name=name,
                seq=seq,
                phase="forward",
                mask=lambda seq, mask=mask: mask,
                peers=(SDPA,),
                checks=(overhead(30),),
            )


def _causal_with_more(seq: int) -> Iterator[Case]:
    """Give causal attention with what torch has no fused kernel for, beside plain causal attention."""
    more: tuple[tuple[str, float, Callable[[], dict[str, Any]], Callable[..., Tensor]], ...] = (
        ("alibi", 1.4, lambda: {"bias": Slopes()}, _with_slopes),
        ("sinks", 1.4, lambda: {"sink": _sink()}, lambda *qkv: _eager(*qkv, softcap=None, sink=_sink())),
        ("softcap", 2.0, lambda: {"softcap": 30.0}, lambda *qkv: _eager(*qkv, softcap=30.0, sink=None)),
        ("dropout", 2.5, lambda: {"dropout_p": 0.1, "dropout_seed": 7}, _with_dropout),
    )
    for name, factor, extras, plain in more:
        yield Case(
            name=name,
            seq=seq,
            phase="train",
            mask=lambda seq: Causal(),
            extras=extras,
            plain=plain,
            shorter=seq // 2,
            peers=(SDPA_CAUSAL, PLAIN),
            checks=(at_most_times(SDPA_CAUSAL, factor), linear_memory(), memory_of_data(4)),
        )


def _document_lengths(seq: int) -> Tensor:
    """Return 32 lengths around their mean that add up to `seq`: half, three quarters, five and six quarters of it."""
    mean = seq // 32
    return torch.tensor([mean * quarters // 4 for quarters in (2, 3, 5, 6)] * 8)
