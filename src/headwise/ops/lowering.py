"""What a mask comes to in one call: nothing, torch's `is_causal`, or a bool tensor; and how idle slots are hidden."""

from jaxtyping import Bool
from torch import Tensor

from headwise.masks.dense import dense_mask
from headwise.masks.form import MaskForm, simplest_form
from headwise.masks.patterns import Full
from headwise.ops.call import Call


def form_of(call: Call) -> MaskForm:
    """Return the simplest form of a call's mask; rows and keys with indices of their own need the tensor."""
    if call.has_indices:
        return MaskForm("bool", has_idle=True)
    return simplest_form(call.mask, call.query.shape[2], call.key.shape[2])


def allowed_pairs(call: Call) -> Bool[Tensor, "#batch #num_heads #query_len key_len"]:
    """Return the mask as a bool tensor of the smallest shape, its last dimension written out for torch's kernels."""
    batch_size, num_heads, query_len, _ = call.query.shape
    key_len = call.key.shape[2]
    allowed = dense_mask(
        Full() if call.mask is None else call.mask,
        batch_size=batch_size,
        num_heads=num_heads,
        query_len=query_len,
        key_len=key_len,
        query_index=call.query_index,
        key_index=call.key_index,
        device=call.query.device,
    )
    return allowed.expand(-1, -1, -1, key_len)


def hide_idle(
    call: Call, allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"]
) -> tuple[Call, Bool[Tensor, "#batch #num_heads #query_len 1"]]:
    """Put zeros into key and value slots that no query reads, and into queries that read no key.

    A masked slot still meets every kernel: its score is computed before the mask hides it, and its value is multiplied
    by a weight of 0, so a NaN or an infinity in it would reach the output and the gradients. Zeros cannot. It costs a
    copy, always: whether it is needed depends on all numbers, the queries' too, and a look at them costs as much.

    Returns:
        The call with nothing idle to see, and which queries have no key.
    """
    num_kv_heads = call.key.shape[1]
    is_empty = ~allowed.any(-1, keepdim=True)  # (B or 1, H or 1, T or 1, 1)
    is_read = allowed.any(-2)  # (B or 1, H or 1, S)
    mask_batch, mask_heads, key_len = is_read.shape
    if mask_heads > 1:  # a slot is read if any query head of its kv head reads it
        is_read = is_read.reshape(mask_batch, num_kv_heads, mask_heads // num_kv_heads, key_len).any(2)
    is_unread = ~is_read.unsqueeze(-1)
    hidden = call._replace(
        query=call.query.masked_fill(is_empty, 0.0),
        key=call.key.masked_fill(is_unread, 0.0),
        value=call.value.masked_fill(is_unread, 0.0),
    )
    return hidden, is_empty
