"""One small attention computed in plain Python, every number kept: for `headwise explain`."""

import math
from collections.abc import Sequence

from headwise.config.checks import require_size
from headwise.errors import ConfigError
from headwise.inspection.results import Step, Walkthrough
from headwise.masks.patterns import Mask

Matrix = Sequence[Sequence[float]]

EXAMPLE_X = ((1.0, 1.0), (1.0, 0.0))
EXAMPLE_W_Q = ((1.0, 1.0), (0.0, 1.0))
EXAMPLE_W_K = ((0.0, 1.0), (1.0, 1.0))
EXAMPLE_W_V = ((1.0, 0.0), (0.0, 1.0))
EXAMPLE_NOTE = (
    "The scale is 1 / sqrt(2), so the first score is 5 / 1.4142 = 3.5355. Walkthroughs that print 2.5 there divide by "
    "head_dim itself."
)


def walk_through(
    x: Matrix,
    w_q: Matrix,
    w_k: Matrix,
    w_v: Matrix,
    w_o: Matrix | None = None,
    *,
    num_heads: int = 1,
    mask: Mask | None = None,
    scale: float | None = None,
    notes: Sequence[str] = (),
) -> Walkthrough:
    """Compute self-attention in float64 and return every step with all its numbers.

    `output = concat_h(softmax(scale * q_h @ k_h^T) @ v_h) @ w_o`, with `q = x @ w_q` and so on. Steps of more than one
    head have the head as their first axis. A query that the mask allows no key has weights 0.

    Args:
        x: (T, E) tokens.
        w_q: (E, H * D) query projection; head h owns columns h * D to (h + 1) * D.
        w_k: (E, H * D) key projection.
        w_v: (E, H * V) value projection.
        w_o: (H * V, any) output projection. Default: none.
        num_heads: number H of heads.
        mask: which keys a query may read. Default: all.
        scale: factor on the scores. Default: 1 / sqrt(D).
        notes: sentences to print below.

    Raises:
        ConfigError: matrices do not fit one another, or heads do not divide their columns.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
    """
    _check(x, w_q, w_k, w_v, w_o, num_heads)
    steps: list[Step] = []

    def step(name: str, equation: str, values: object) -> None:
        steps.append(Step(name=name, equation=equation, shape=_shape(values), values=freeze(values)))

    def step_of_heads(name: str, equation: str, heads: Sequence[Matrix]) -> None:
        step(name, equation, heads if num_heads > 1 else heads[0])

    step("x", "one row a token", x)
    step("w_q", "query projection", w_q)
    step("w_k", "key projection", w_k)
    step("w_v", "value projection", w_v)
    split = f", columns split into {num_heads} heads" if num_heads > 1 else ""
    q, k, v = (_split(_matmul(x, weight), num_heads) for weight in (w_q, w_k, w_v))
    step_of_heads("query", f"x @ w_q{split}", q)
    step_of_heads("key", f"x @ w_k{split}", k)
    step_of_heads("value", f"x @ w_v{split}", v)

    raw = [_matmul(q_head, _transpose(k_head)) for q_head, k_head in zip(q, k, strict=True)]
    step_of_heads("scores_before_scale", "query @ key^T", raw)
    head_dim = len(q[0][0])
    if scale is None:
        scale = 1 / math.sqrt(head_dim)
        step("scale", f"1 / sqrt(head_dim) = 1 / sqrt({head_dim})", scale)
    else:
        step("scale", "given", float(scale))
    scores = [[[scale * score for score in row] for row in head] for head in raw]
    step_of_heads("scores", "scale * scores_before_scale", scores)

    num_tokens = range(len(x))
    allowed = [
        [[mask is None or bool(mask.allows(0, h, i, j)) for j in num_tokens] for i in num_tokens]
        for h in range(num_heads)
    ]
    over = ""
    if mask is not None:
        step_of_heads("mask", f"1 = may attend: {mask!r}", [[[float(a) for a in row] for row in h] for h in allowed])
        over = " where mask is 1, else 0"
    powers = [[_exponentials(*row) for row in zip(*head, strict=True)] for head in zip(scores, allowed, strict=True)]
    step_of_heads("exponentials", f"exp(scores - the row's largest){over}", powers)
    sums = [[[sum(row)] for row in head] for head in powers]
    step_of_heads("sums", "sum of each row of exponentials", sums)
    # the sum of a row that sees a key is at least exp(0) = 1; `or 1` is for a row that sees none
    weights = [[[power / (sum(row) or 1.0) for power in row] for row in head] for head in powers]
    step_of_heads("weights", "exponentials / sums = softmax(scores)", weights)

    mixed = [_matmul(weights_head, v_head) for weights_head, v_head in zip(weights, v, strict=True)]
    if num_heads == 1 and w_o is None:
        step("output", "weights @ value", mixed[0])
        return Walkthrough(steps=tuple(steps), notes=tuple(notes))
    step_of_heads("weighted_sum", "weights @ value", mixed)
    joined = [[number for head in mixed for number in head[i]] for i in num_tokens]
    if num_heads > 1:
        step("output" if w_o is None else "concatenated", "the heads' rows of weighted_sum side by side", joined)
    if w_o is not None:
        step("w_o", "output projection", w_o)
        step("output", f"{'concatenated' if num_heads > 1 else 'weighted_sum'} @ w_o", _matmul(joined, w_o))
    return Walkthrough(steps=tuple(steps), notes=tuple(notes))


def _check(x: Matrix, w_q: Matrix, w_k: Matrix, w_v: Matrix, w_o: Matrix | None, num_heads: int) -> None:
    for name, matrix in (("x", x), ("w_q", w_q), ("w_k", w_k), ("w_v", w_v), ("w_o", w_o)):
        if matrix is None:
            continue
        if not matrix or not matrix[0] or len({len(row) for row in matrix}) != 1:
            raise ConfigError(f"{name} must be a matrix: rows of the same length, at least one; got {matrix!r:.80}")
        if not all(math.isfinite(number) for row in matrix for number in row):
            raise ConfigError(f"{name} must hold finite numbers; got {matrix!r:.80}")
    require_size("num_heads", num_heads)
    for name, matrix in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v)):
        if len(matrix) != len(x[0]):
            raise ConfigError(f"{name} must have a row for each of the {len(x[0])} columns of x; got {len(matrix)}")
        if len(matrix[0]) % num_heads:
            raise ConfigError(
                f"the columns of {name} must divide into {num_heads} heads of the same size; got {len(matrix[0])}"
            )
    if len(w_q[0]) != len(w_k[0]):
        raise ConfigError(f"w_q and w_k must have as many columns; got {len(w_q[0])} and {len(w_k[0])}")
    if w_o is not None and len(w_o) != len(w_v[0]):
        raise ConfigError(f"w_o must have a row for each of the {len(w_v[0])} columns of w_v; got {len(w_o)}")


def _matmul(a: Matrix, b: Matrix) -> list[list[float]]:
    columns = list(zip(*b, strict=True))
    return [[math.fsum(p * q for p, q in zip(row, column, strict=True)) for column in columns] for row in a]


def _transpose(matrix: Matrix) -> list[list[float]]:
    return [list(column) for column in zip(*matrix, strict=True)]


def _split(matrix: Matrix, num_heads: int) -> list[Matrix]:
    size = len(matrix[0]) // num_heads
    return [[row[h * size : (h + 1) * size] for row in matrix] for h in range(num_heads)]


def _exponentials(scores: Sequence[float], allowed: Sequence[bool]) -> list[float]:
    largest = max((score for score, sees in zip(scores, allowed, strict=True) if sees), default=0.0)
    return [math.exp(score - largest) if sees else 0.0 for score, sees in zip(scores, allowed, strict=True)]


def _shape(values: object) -> tuple[int, ...]:
    return (len(values), *_shape(values[0])) if isinstance(values, Sequence) else ()


def freeze(values: object) -> object:
    """Return numbers in lists of lists as tuples of tuples of floats."""
    return tuple(freeze(value) for value in values) if isinstance(values, Sequence) else float(values)  # type: ignore[arg-type]
