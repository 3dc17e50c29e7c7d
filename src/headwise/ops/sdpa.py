"""Adapter to torch's fused kernels: scaled_dot_product_attention with our meaning of masks, groups and empty rows."""

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from headwise.kernels import KernelChoice, SdpaCase, choose_packing
from headwise.masks.form import MaskForm
from headwise.masks.patterns import Causal
from headwise.ops.call import Call
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle
from headwise.ops.results import AttentionOutput

# Where every kernel gives 0 for a query without a key, with gradients of 0; tested there.
ZERO_WITHOUT_A_KEY = ("cpu",)


def sdpa_attention(call: Call) -> AttentionOutput:
    """Compute attention with `F.scaled_dot_product_attention`.

    What torch means otherwise is settled here: its `is_causal` aligns the first query with the first key, so it is used
    for squares alone, and its kernels let NaN in masked slots through, so such slots are hidden wherever the lengths do
    not prove that there are none. A query without a key is let see every key, and its output set to 0 afterwards, on
    devices whose kernels may give it NaN.
    """
    form = form_of(call)
    if form.kind != "bool":
        return AttentionOutput(_call_torch(call, None, form))
    allowed = allowed_pairs(call)
    if not form.has_idle:
        return AttentionOutput(_call_torch(call, allowed, form))
    call, is_empty = hide_idle(call, allowed)
    if call.query.device.type in ZERO_WITHOUT_A_KEY:
        return AttentionOutput(_call_torch(call, allowed, form))
    return AttentionOutput(_call_torch(call, allowed | is_empty, form).masked_fill(is_empty, 0.0))


def plan_kernel(call: Call, form: MaskForm) -> tuple[bool, KernelChoice]:
    """Decide whether the queries of a group are packed (see `choose_packing`), and say which kernel then runs."""
    tensors = call[:3]
    query, key, value = tensors
    num_heads, query_len, head_dim = query.shape[1:]
    queries_per_kv = num_heads // key.shape[1]
    is_cuda = query.device.type == "cuda"
    unpacked = SdpaCase(
        device="cuda" if is_cuda else "cpu",
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=head_dim,
        v_head_dim=value.shape[-1],
        mask=form.kind,
        grouped=queries_per_kv > 1,
        dropout_p=call.dropout_p,
        requires_grad=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
        query_len=query_len,
        key_len=key.shape[2],
        contiguous=all(tensor.stride(-1) == 1 for tensor in tensors),
        compute_capability=torch.cuda.get_device_capability(query.device) if is_cuda else (8, 0),
    )
    return choose_packing(unpacked, queries_per_kv)


def _call_torch(
    call: Call, allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"] | None, form: MaskForm
) -> Tensor:
    query, key, value = call[:3]
    is_grouped = query.shape[1] != key.shape[1]
    is_causal = form.kind == "causal"
    is_packed = is_grouped and plan_kernel(call, form)[0]
    if is_packed:
        if is_causal:
            is_causal, allowed = False, allowed_pairs(call._replace(mask=Causal()))
        query, allowed = _pack(query, allowed, key.shape[1])
    output = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=call.dropout_p,
        is_causal=is_causal,
        scale=call.score_scale,
        enable_gqa=is_grouped and not is_packed,
    )
    return output.reshape(*call.query.shape[:3], value.shape[-1]) if is_packed else output


def _pack(query: Tensor, allowed: Tensor | None, num_kv_heads: int) -> tuple[Tensor, Tensor | None]:
    """Lay the queries of the heads of one kv head side by side, and what they may read with them."""
    batch_size, num_heads, query_len, head_dim = query.shape
    queries_per_kv = num_heads // num_kv_heads
    query = query.reshape(batch_size, num_kv_heads, queries_per_kv * query_len, head_dim)
    if allowed is not None and (allowed.shape[1] > 1 or allowed.shape[2] > 1):
        # (B or 1, H or 1, T or 1, S) -> (B or 1, K or 1, H/K * T, S)
        mask_batch, mask_heads, mask_queries, key_len = allowed.shape
        mask_groups = (num_kv_heads, queries_per_kv) if mask_heads > 1 else (1, 1)
        groups = allowed.reshape(mask_batch, *mask_groups, mask_queries, key_len)
        allowed = groups.expand(-1, -1, queries_per_kv, query_len, -1).flatten(2, 3)
    return query, allowed
