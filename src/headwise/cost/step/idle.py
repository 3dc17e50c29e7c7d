"""What is idle in a call of our own attention, on a tape: queries without a key, and keys that nobody reads."""

from functools import lru_cache

from headwise.config.attention import AttentionConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.grid import Grid
from headwise.cost.step.score_bias import Places
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.masks.patterns import Mask

Idle = tuple[Storage, Storage]


def allowed_pairs(tape: Tape, mask: Mask, places: Places) -> Value:
    """Make the mask as a bool tensor of the smallest shape, its last dimension written out by a stride of 0."""
    allowed = mask.allows(*places)
    if not isinstance(allowed, Grid):
        allowed = Grid(tape, (1, 1, 1, 1), "bool")
    return Value((*allowed.shape[:3], places.key.shape[3]), allowed.storage)


def make_idle(tape: Tape, query: Value, key: Value, *, batch: int = 1, is_headed: bool = False) -> Idle:
    """Say which queries read no key, and which keys are read by none.

    Args:
        tape: of the step.
        query, key: (B, H, T, D), (B, K, S, D).
        batch: number of batch rows that are told apart.
        is_headed: whether heads are told apart.
    """
    num_heads, num_kv_heads = (one.shape[1] if is_headed else 1 for one in (query, key))
    return (
        tape.new("queries without a key", (batch, num_heads, query.shape[2], 1), "bool"),
        tape.new("keys that nobody reads", (batch, num_kv_heads, key.shape[2], 1), "bool"),
    )


def hide_idle(idle: Idle, query: Value, key: Value, value: Value) -> tuple[Value, Value, Value, Storage]:
    """Put zeros where nothing is read; also give which queries read no key."""
    is_empty, is_unread = idle
    return (
        ops.fill("query, idle ones hidden", query, is_empty),
        ops.fill("key, idle ones hidden", key, is_unread),
        ops.fill("value, idle ones hidden", value, is_unread),
        is_empty,
    )


def num_mask_heads(config: AttentionConfig) -> int:
    """Return how many heads the layer's mask tells apart: all, or 1 where it does not look at them."""
    tape = Tape(grad_enabled=False)
    tape.begin("mask")
    head = Grid(tape, (1, config.num_heads, 1, 1))
    alone = Grid(tape, (1, 1, 1, 1))
    allowed = config.mask.allows(alone, head, alone, alone)
    return allowed.shape[1] if isinstance(allowed, Grid) else 1


@lru_cache(64)
def reads_itself(mask: Mask, num_heads: int, seq: int) -> bool:
    """Tell whether each token reads itself in every head that the mask tells apart, so that there is nothing idle."""
    return all(mask.allows(0, head, place, place) for head in range(num_heads) for place in range(seq))
