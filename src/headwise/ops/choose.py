"""Which implementation serves a call: the rules of "auto", in one table, and what each faster one lacks."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import UnsupportedError
from headwise.kernels import (
    LEAST_PAIRS,
    LEAST_QUERIES,
    MOST_VISITED,
    KernelChoice,
    may_pay_by_blocks,
)
from headwise.masks.visits import visited_share
from headwise.ops.blocked.fused import can_fuse
from headwise.ops.call import Call
from headwise.ops.lowering import form_of, skip_unread_keys
from headwise.ops.obstacles import OBSTACLES, is_traced, is_watched, require_impl, with_numbers
from headwise.ops.results import Choice
from headwise.ops.sdpa import plan_kernel


class Rule(NamedTuple):
    """One line of the table: if it holds, the implementation serves a call, unless it has an obstacle.

    `why`: why it is taken, as a clause after "sdpa is not taken: ".
    """

    impl: str
    holds: Callable[[Call], bool]
    why: str


def _runs_here(call: Call) -> bool:
    if is_traced() or call.query.shape[0] == 0:
        return False  # a length that is traced may be unknown
    return may_pay_by_blocks(call.query.device.type, call.query.shape[2], call.key.shape[2])


LEAST_READ = 2**21
"""Numbers in all keys and values from which on a token's attention is faster by plain products: those of 8 MiB are read
from memory anew at each token, at 0.95 to 1.4 times the rate of torch's kernel; of more at up to twice its rate."""
LEAST_READ_KEYS = 256
LEAST_READ_WIDTH = 64  # of a head: shorter vectors are mixed no faster
MOST_READERS = 8  # queries of a kv head, above which products pay for a single kv head and many keys alone
LEAST_KEYS_OF_MANY = 1024


def reads_much(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether one token reads so many keys and values that `decode` reads them faster than torch's kernel."""
    if query.shape[2] != 1 or query.dtype != torch.float32 or query.device.type != "cpu":
        return False
    num_kv_heads, key_len = key.shape[1:3]
    if key.numel() + value.numel() < LEAST_READ or min(query.shape[3], value.shape[3]) < LEAST_READ_WIDTH:
        return False
    # Token behind token, and evenly from head to head, as in a cache: else products would copy them.
    for one in (key, value):
        is_even = len(one) == 1 or one.stride(0) == one.shape[1] * one.stride(1)
        if one.stride()[2:] != (one.shape[3], 1) or not is_even:
            return False
    if query.shape[1] > MOST_READERS * num_kv_heads:
        return num_kv_heads == 1 and key_len >= LEAST_KEYS_OF_MANY
    return key_len >= LEAST_READ_KEYS


def _reads_much(call: Call) -> bool:
    if call.query.shape[2] != 1 or is_traced() or is_watched():
        return False
    return reads_much(*skip_unread_keys(call)[:3])


def _is_sparse(call: Call) -> bool:
    if call.has_indices or form_of(call).kind != "bool":
        return False  # with indices of their own, all pairs would have to be looked at to know
    with with_numbers(call):
        return visited_share(call.mask, call.sizes, call.known) <= MOST_VISITED


def _has_no_kernel(call: Call) -> bool:
    """torch would build the score matrix: for dropout, a bias that learns, or values of another size."""
    return not plan_kernel(call)[1].is_fused


def _has_function(call: Call) -> bool:
    return (call.bias is not None and not isinstance(call.bias, Tensor)) or call.sink is not None


RULES = (
    Rule("decode", _reads_much, "its products with few rows read memory at half the rate, or on one thread"),
    Rule("blocked", _is_sparse, "its time and memory are those of the whole square, whatever the mask"),
    Rule("blocked", _has_no_kernel, "torch's math kernel would hold the score matrix"),
    Rule("blocked", _has_function, "it would need a bias for every pair, or one more key for the sink"),
    Rule("sdpa", lambda call: True, ""),
    Rule("blocked", lambda call: True, ""),
    Rule("reference", lambda call: True, ""),
)
"""The rules of "auto", the first that holds: products for a token on many keys, blocks where they save time or memory,
torch's kernels, plain tensors.

Those for blocks count where `may_pay_by_blocks`."""

_RULES_WITHOUT_BLOCKS = tuple(rule for rule in RULES if rule.impl != "blocked")


def resolve_impl(call: Call, impl: str) -> str:
    """Return the implementation that serves a call.

    Raises:
        UnsupportedError: an unknown name, or an implementation that cannot give what is asked for; the text names those
            that can.
    """
    require_impl(impl)
    if impl == "auto":
        return _first_rule(call).impl
    obstacle = OBSTACLES[impl](call)
    if obstacle is not None:
        able = " or ".join(f'impl="{other}"' for other, find in OBSTACLES.items() if find(call) is None)
        raise UnsupportedError(f'{obstacle}; use {able}, which can, or "auto"')
    return impl


def explain_choice(call: Call, impl: str, *, was_asked_for: bool) -> Choice:
    """Say which kernel an implementation runs on, and why each faster implementation and kernel is not taken."""
    if impl == "sdpa":
        kernel: KernelChoice = plan_kernel(call)[1]
        return Choice(impl=impl, kernel=kernel.name, reasons=kernel.reasons)
    kernel_name = "flash" if impl == "blocked" and can_fuse(call) else None
    reasons = []
    for faster in ("sdpa",) if impl == "decode" else ("sdpa", "blocked"):
        if faster == impl:
            break
        reason = OBSTACLES[faster](call)
        if reason is None:
            reason = f"{impl} was asked for" if was_asked_for else _first_rule(call).why or _why_not_blocked(call)
        reasons.append(f"{faster} is not taken: {reason}")
    return Choice(impl=impl, kernel=kernel_name, reasons=tuple(reasons))


def _why_not_blocked(call: Call) -> str:
    if call.query.device.type != "cpu":
        return "it has not been measured on this device"
    return f"it is for {LEAST_QUERIES} queries and {LEAST_PAIRS:,} pairs or more"


def _first_rule(call: Call) -> Rule:
    with_blocks = _runs_here(call) and OBSTACLES["blocked"](call) is None
    rules = RULES if with_blocks else _RULES_WITHOUT_BLOCKS
    return next(
        rule for rule in rules if rule.holds(call) and (rule.impl == "blocked" or OBSTACLES[rule.impl](call) is None)
    )
