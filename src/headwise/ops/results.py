"""What the operations answer with."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from headwise.results import Result


class AttentionOutput(NamedTuple):
    """What attention computed; what was not asked for is None.

    `output`: (batch, num_heads, query_len, v_head_dim), in the query's dtype. `weights`: (batch, num_heads, query_len,
    key_len), before dropout; each row sums to 1, less the share of a sink, or is 0 where the query may read no key.
    `logsumexp`: (batch, num_heads, query_len), natural logarithm of the sum of exp(score) over the keys, -inf where
    there is none. The last two are float32, or float64 for float64 inputs.
    """

    output: Tensor
    weights: Tensor | None = None
    logsumexp: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Choice(Result):
    """Which implementation serves a call, on which of torch's kernels, and a sentence for each faster one not taken.

    `kernel` is None for an implementation that uses plain tensor operations.
    """

    impl: str
    kernel: str | None
    reasons: tuple[str, ...]
