"""Adapter to torch's FlexAttention: the mask as its `mask_mod`, bias and cap as its `score_mod`.

On CUDA it compiles a kernel that skips the blocks that the mask forbids, and trains. On CPU it has no backward pass,
its kernels give no logsumexp, and compiling takes seconds to a minute; so there it is compiled only for lengths at
which the matrix of scores, which it builds uncompiled, would be large. Our tests run it on CPU alone, and uncompiled;
that other lengths do not compile it again and again is tested on its graphs, without kernels.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

from headwise.masks.dense import flex_mask_mod
from headwise.masks.patterns import Full, Mask
from headwise.ops.blocked.idle import find_idle
from headwise.ops.blocked.work import Work
from headwise.ops.call import Call
from headwise.ops.lowering import fill_idle, form_of
from headwise.ops.reference import reference_attention
from headwise.ops.results import AttentionOutput
from headwise.ops.scores import cap_scores, places_of

BLOCK_SIZE = 128  # tokens to a side of a block, FlexAttention's own default
COMPILE_FROM_PAIRS = 2**20  # scores of one head, 4 MiB of them: from here on CPU compiles too
COMPILED_CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NUM_KEPT_MASKS = 16

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def flex_attention(call: Call) -> AttentionOutput:
    """Compute attention with `torch.nn.attention.flex_attention`.

    Slots that nobody reads and queries that read nothing are filled with zeros, as for the other kernels. A sink scales
    the output, by the share of the weights that it leaves to the keys: `sigmoid(logsumexp - sink)`.
    """
    if not (call.query.numel() and call.value.numel()):
        return reference_attention(call)  # there is no pair, or no number, to compute
    if not call.needs_gradient:  # on CPU it refuses tensors that could learn, even where nothing does
        call = call._replace(query=call.query.detach(), key=call.key.detach(), value=call.value.detach())
    block_mask = None
    if call.has_indices or form_of(call).kind != "none":
        block_mask = _lower(call)
        idle = find_idle(call, Work(call, is_fused=True).every_part)
        call = call if idle is None else fill_idle(call, idle)
    compute = _compiled() if _pays_to_compile(call) else _compute_uncompiled
    output, aux = compute(
        *call[:3],
        score_mod=_score_mod(call),
        block_mask=block_mask,
        scale=call.score_scale,
        enable_gqa=call.query.shape[1] != call.key.shape[1],
        return_aux=AuxRequest(lse=_needs_logsumexp(call)),
    )
    if call.sink is not None:
        share = (aux.lse - call.sink.view(-1, 1)).sigmoid()
        output = (output * share.unsqueeze(-1)).to(output.dtype)
    return AttentionOutput(output, None, aux.lse if call.return_logsumexp else None)


def _pays_to_compile(call: Call) -> bool:
    if call.query.device.type != "cpu":
        return True
    num_pairs = call.query.shape[2] * call.key.shape[2]
    is_served = call.query.dtype in COMPILED_CPU_DTYPES and not _needs_logsumexp(call)
    return is_served and num_pairs >= COMPILE_FROM_PAIRS


def _needs_logsumexp(call: Call) -> bool:
    return call.return_logsumexp or call.sink is not None


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    """Return FlexAttention compiled: for the first lengths it meets, and once more for all others of their kind.

    With `dynamic=True`, numbers inside a mask become symbols too, which torch's CPU kernels cannot do.
    """
    return torch.compile(torch_flex.flex_attention)


def _compute_uncompiled(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Any:
    """Call FlexAttention as plain tensor operations, by a switch of torch 2.13's that has no public name."""
    switch = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = getattr(torch_flex, switch)
    setattr(torch_flex, switch, True)
    try:
        return torch_flex.flex_attention(query, key, value, **settings)
    finally:
        setattr(torch_flex, switch, before)


def _lower(call: Call) -> BlockMask:
    """Return the mask of a call for FlexAttention."""
    mask = Full() if call.mask is None else call.mask
    batch_size, num_heads, query_len, _ = call.query.shape
    key_len = call.key.shape[2]
    device = call.query.device
    if call.has_indices:
        mask_mod = flex_mask_mod(
            mask,
            query_len=query_len,
            key_len=key_len,
            query_index=places_of(call).query_index[:, 0, :, 0].expand(batch_size, -1),
            key_index=call.key_index,
        )
        # Where the tokens stand is not known before a look at the indices: every block is looked at, pair by pair.
        blocks = (1, 1, -(-query_len // BLOCK_SIZE), -(-key_len // BLOCK_SIZE))
        partial = torch.ones(blocks, dtype=torch.bool, device=device)
        return _block_mask(partial, torch.zeros_like(partial), mask_mod, query_len, key_len)
    sizes = (num_heads, query_len, key_len, device)
    return _lower_kept(mask, *sizes) if mask.is_structural else _lower_plain(mask, batch_size, *sizes)


@lru_cache(maxsize=NUM_KEPT_MASKS)
def _lower_kept(mask: Mask, num_heads: int, query_len: int, key_len: int, device: torch.device) -> BlockMask:
    """Do what `_lower_plain` does, once for each structural mask, which is the same for all batch rows."""
    with torch.inference_mode(False):  # what is remembered serves a training, too
        return _lower_plain(mask, 1, num_heads, query_len, key_len, device)


def _lower_plain(
    mask: Mask,
    batch_size: int,
    num_heads: int,
    query_len: int,
    key_len: int,
    device: torch.device,
) -> BlockMask:
    layout = mask.block_layout(BLOCK_SIZE, query_len, key_len, batch_size=batch_size, num_heads=num_heads)
    whole = layout.all_allowed.clone()
    # A block that the lengths cut is looked at pair by pair, as in torch's own masks.
    whole[..., query_len // BLOCK_SIZE :, :] = False
    whole[..., key_len // BLOCK_SIZE :] = False
    partial = layout.any_allowed & ~whole
    offset = _offset(query_len, key_len, device)
    at_places = flex_mask_mod(mask, query_len=0, key_len=0)

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return at_places(batch, head, query + offset, key)

    return _block_mask(partial.to(device), whole.to(device), mask_mod, query_len, key_len)


def _offset(query_len: int, key_len: int, device: torch.device) -> Tensor:
    """Return the place of the first query, as a tensor: a number would be compiled in."""
    return torch.full((), key_len - query_len, device=device)


def _block_mask(
    partial: Tensor, whole: Tensor, mask_mod: Callable[..., Tensor], query_len: int, key_len: int
) -> BlockMask:
    """Write two tables of blocks, (B or 1, H or 1, query blocks, key blocks), as FlexAttention's lists of them."""

    def list_blocks(table: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many key blocks each query block has, and their numbers before those of all others."""
        order = torch.argsort(table.int(), dim=-1, descending=True, stable=True)
        return table.sum(-1).int(), order.int()

    return BlockMask.from_kv_blocks(
        *list_blocks(partial),
        *list_blocks(whole),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=mask_mod,
        seq_lengths=(query_len, key_len),
    )


def _score_mod(call: Call) -> ScoreMod | None:
    """Return cap and bias of a call as FlexAttention's `score_mod`; None without either."""
    softcap, bias = call.softcap, call.bias
    if bias is None:
        if softcap is None:
            return None
        return lambda score, batch, head, query, key: cap_scores(score, softcap)
    if isinstance(bias, Tensor):
        table = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        sizes = table.shape

        def add_table(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            place = [at if size > 1 else 0 for at, size in zip((batch, head, query, key), sizes, strict=True)]
            return cap_scores(score, softcap) + table[place[0], place[1], place[2], place[3]]

        return add_table

    function, tensors = bias, bias.tensors
    query_len, key_len = call.query.shape[2], call.key.shape[2]
    query_positions = call.query_index if call.query_positions is None else call.query_positions
    key_positions = call.key_index if call.key_positions is None else call.key_positions
    offset = _offset(query_len, key_len, call.query.device)

    def add_function(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_position = query + offset if query_positions is None else _look_up(query_positions, batch, query)
        key_position = key if key_positions is None else _look_up(key_positions, batch, key)
        return cap_scores(score, softcap) + function(batch, head, query_position, key_position, *tensors)

    return add_function


def _look_up(places: Tensor, batch: Tensor, slot: Tensor) -> Tensor:
    return places[slot] if places.ndim == 1 else places[batch, slot]
