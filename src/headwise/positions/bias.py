"""Biases that are functions of the distance of two positions: ALiBi's slopes, and T5's learned buckets.

Both are functions `(batch, head, query_position, key_position) -> term of the score`, as `ops` takes them: whoever
computes attention asks for the part that it works on, and no (T, S) table is needed.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.checks import require_instance, require_size
from headwise.config.position import ALiBi, T5Bias
from headwise.errors import ConfigError, UnsupportedError


class ALiBiBias(nn.Module):
    """Let the score of a key fall with its distance: `bias = -slope_h * |query_position - key_position|`.

    The paper's model is causal, and knows keys before the query alone; for keys after it the distance is taken without
    its sign, as bidirectional models do. Nothing is learned, and no tensor is held that a change of dtype could round.

    Args:
        num_heads: number of query heads, at least 1.

    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", section 3.
    """

    def __init__(self, num_heads: int):
        super().__init__()
        require_size("num_heads", num_heads)
        self.num_heads = num_heads

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Nothing: the slopes do not learn."""
        return ()

    def forward(
        self,
        batch: Int[Tensor, "..."],
        head: Int[Tensor, "..."],
        query_position: Int[Tensor, "..."],
        key_position: Int[Tensor, "..."],
    ) -> Float[Tensor, "..."]:
        """Return the bias of each pair, float32.

        Args:
            batch: row of the batch, which does not matter; an integer tensor, as the next three, which broadcast.
            head: query head.
            query_position: position of the query.
            key_position: position of the key.
        """
        distance = (query_position.long() - key_position.long()).abs().float()  # narrow dtypes would wrap around
        return -alibi_slopes(head, self.num_heads) * distance

    def extra_repr(self) -> str:
        """Show the number of heads in the module's print."""
        return f"num_heads={self.num_heads}"


def alibi_slopes(head: Int[Tensor, "..."], num_heads: int) -> Float[Tensor, "..."]:
    """Return ALiBi's slope of each head, float32.

    For a power of two, the geometric row that starts at `2^(-8 / num_heads)` and has that factor too. For another
    number the row of the largest power of two below it, and then every other slope of the row of twice that power, from
    its first on.

    Args:
        head: query heads, counted from 0.
        num_heads: how many heads there are, at least 1.

    Source: Press et al. 2022, "Train Short, Test Long", section 3; for numbers that are no power of two, the authors'
    code (github.com/ofirpress/attention_with_linear_biases).
    """
    power = 2 ** (num_heads.bit_length() - 1)
    place = head + 1.0
    between = head - power + 0.5  # places 1, 3, 5, ... of the row of 2 * power are 0.5, 1.5, 2.5, ... of this one
    return torch.exp2(torch.where(head < power, place, between) * (-8 / power))


class T5RelativeBias(nn.Module):
    """Look up a learned bias for the bucket of a distance: `bias = table[bucket(key_position - query_position), h]`.

    Near distances have a bucket each; farther ones share, the wider the farther, and from `max_distance` on all share
    the last. T5 adds the same bias in each layer of a stack, and does not scale its scores (`scale=1.0`).

    Args:
        config: number of buckets, the distance from which on all are one, and whether later keys have buckets of their
            own (an encoder) or share one with the query itself (a decoder).
        num_heads: number of query heads.

    Attributes:
        table: (num_buckets, num_heads), as `relative_attention_bias.weight` of Hugging Face's T5.

    Raises:
        ConfigError: too few buckets, or a `max_distance` that near distances reach already.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1.
    """

    def __init__(self, config: T5Bias, num_heads: int):
        super().__init__()
        require_instance("config", config, T5Bias)
        require_size("num_heads", num_heads)
        sides = 2 if config.is_bidirectional else 1
        if config.num_buckets < 2 * sides or config.max_distance <= config.num_buckets // sides // 2:
            raise ConfigError(
                f"num_buckets must be at least {2 * sides}, and max_distance above the number of distances that have a "
                f"bucket each, {config.num_buckets // sides // 2}; got {config.num_buckets} and {config.max_distance}"
            )
        self.config = config
        self.table = nn.Parameter(torch.empty(config.num_buckets, num_heads))
        nn.init.normal_(self.table)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The table."""
        return (self.table,)

    def forward(
        self,
        batch: Int[Tensor, "..."],
        head: Int[Tensor, "..."],
        query_position: Int[Tensor, "..."],
        key_position: Int[Tensor, "..."],
        table: Float[Tensor, "num_buckets num_heads"],
    ) -> Float[Tensor, "..."]:
        """Return the bias of each pair, in the table's dtype.

        Args:
            batch: row of the batch, which does not matter; an integer tensor, as the next three, which broadcast.
            head: query head.
            query_position: position of the query.
            key_position: position of the key.
            table: the module's table, or what stands in for it.
        """
        buckets = t5_buckets(key_position.long() - query_position.long(), self.config)  # narrow dtypes would wrap
        return table[buckets, head]

    def extra_repr(self) -> str:
        """Show the config in the module's print."""
        return f"num_heads={self.table.shape[1]}, config={self.config}"


def t5_buckets(distance: Int[Tensor, "..."], config: T5Bias) -> Int[Tensor, "..."]:
    """Return the bucket of each distance `key_position - query_position`, counted from 0.

    Of the `n` buckets of a side, the first half are of the distances 0, 1, ..., `n/2 - 1`; distance `d` beyond is in
    bucket `n/2 + floor(ln(d / (n/2)) / ln(max_distance / (n/2)) * (n - n/2))`, at most `n - 1`. If both sides have
    buckets, those of later keys come after those of earlier ones, the query itself being counted with the earlier.

    Args:
        distance: any whole numbers.
        config: how many buckets there are, and of which distances.
    """
    num_buckets = config.num_buckets
    first = torch.zeros_like(distance)
    if config.is_bidirectional:
        num_buckets //= 2
        first = first + (distance > 0) * num_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    num_exact = num_buckets // 2
    # In float32, and in this order, as models with this table were trained.
    ratio = (distance.clamp(min=1).float() / num_exact).log() / math.log(config.max_distance / num_exact)
    far = (num_exact + (ratio * (num_buckets - num_exact)).long()).clamp(max=num_buckets - 1)
    return first + torch.where(distance < num_exact, distance, far)


def make_relative_bias(position: object, num_heads: int) -> "ALiBiBias | T5RelativeBias | None":
    """Return the bias of a layer with these positions; None where they are rotary or none.

    Raises:
        UnsupportedError: T5's bias without a table of its own.
    """
    if isinstance(position, ALiBi):
        return ALiBiBias(num_heads)
    if not isinstance(position, T5Bias):
        return None
    if not position.owns_table:
        raise UnsupportedError(
            "a T5Bias must own its table for a layer to be built here; got owns_table=False, whose biases are those of "
            "another layer; run the model through transformers"
        )
    return T5RelativeBias(position, num_heads)
