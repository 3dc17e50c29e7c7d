"""Adapter to torch's fused kernels: scaled_dot_product_attention with our meaning of masks, groups and empty rows."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from headwise.kernels import KernelChoice, sdpa_kernel
from headwise.masks.patterns import Causal, Mask
from headwise.ops.lowering import MaskForm, allowed_pairs, hide_idle, simplest_form
from headwise.ops.results import AttentionOutput


def sdpa_attention(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    *,
    mask: Mask | None,
    query_index: Int[Tensor, "... query_len"] | None,
    key_index: Int[Tensor, "... key_len"] | None,
    scale: int | float,
    dropout_p: int | float,
) -> AttentionOutput:
    """Compute attention with `F.scaled_dot_product_attention`.

    Arguments as of `headwise.ops.attention.attention`, which checks them. What torch means otherwise is settled here:
    its `is_causal` aligns the first query with the first key, so it is used for squares alone; its kernels let NaN in
    masked slots through, so such slots are hidden wherever the lengths do not prove that there are none; and keys
    before the reach of a window are cut off first.

    Scores must be finite for every pair, masked ones too: torch adds -inf to a masked score.
    """
    query_len, key_len = query.shape[2], key.shape[2]
    form = simplest_form(mask, query_len, key_len, has_indices=query_index is not None or key_index is not None)
    if form.kind != "bool":
        return AttentionOutput(
            _call_torch(query, key, value, allowed=None, form=form, scale=scale, dropout_p=dropout_p)
        )

    if form.first_key:
        key, value = key[:, :, form.first_key :], value[:, :, form.first_key :]
    allowed = allowed_pairs(mask, query, key, query_index, key_index)
    if not form.has_idle:
        return AttentionOutput(
            _call_torch(query, key, value, allowed=allowed, form=form, scale=scale, dropout_p=dropout_p)
        )
    query, key, value, allowed, is_empty = hide_idle(query, key, value, allowed)
    output = _call_torch(query, key, value, allowed=allowed, form=form, scale=scale, dropout_p=dropout_p)
    return AttentionOutput(output if is_empty is None else output.masked_fill(is_empty, 0.0))


def plan_kernel(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    form: MaskForm,
    dropout_p: int | float,
) -> tuple[bool, KernelChoice]:
    """Decide whether the queries of a group are packed, and say which kernel then runs.

    Packed, the query heads of one kv head become more queries of one head. Then torch never copies keys and values for
    each query head, as its math kernel does, kernels that know no groups can run, and a single query reads its keys
    once for the whole group.
    """
    is_cuda = query.device.type == "cuda"

    def kernel(is_grouped: bool, mask: Literal["none", "causal", "bool"], query_len: int) -> KernelChoice:
        return sdpa_kernel(
            device="cuda" if is_cuda else "cpu",
            dtype=str(query.dtype),
            head_dim=query.shape[-1],
            v_head_dim=value.shape[-1],
            mask=mask,
            grouped=is_grouped,
            dropout_p=dropout_p,
            requires_grad=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)),
            query_len=query_len,
            key_len=key.shape[2],
            contiguous=all(tensor.stride(-1) == 1 for tensor in (query, key, value)),
            compute_capability=torch.cuda.get_device_capability(query.device) if is_cuda else (8, 0),
        )

    num_heads, query_len = query.shape[1:3]
    queries_per_kv = num_heads // key.shape[1]
    unpacked = kernel(queries_per_kv > 1, form.kind, query_len)
    if queries_per_kv == 1 or (query_len > 1 and unpacked.is_fused):
        return False, unpacked
    return True, kernel(False, "none" if form.kind == "none" else "bool", queries_per_kv * query_len)


def _call_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"] | None,
    form: MaskForm,
    scale: int | float,
    dropout_p: int | float,
) -> Tensor:
    is_grouped = query.shape[1] != key.shape[1]
    if is_grouped and plan_kernel(query, key, value, form, dropout_p)[0]:
        return _call_packed(query, key, value, allowed=allowed, form=form, scale=scale, dropout_p=dropout_p)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout_p,
        is_causal=form.kind == "causal",
        scale=scale,
        enable_gqa=is_grouped,
    )


def _call_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"] | None,
    form: MaskForm,
    scale: int | float,
    dropout_p: int | float,
) -> Tensor:
    batch_size, num_heads, query_len, head_dim = query.shape
    num_kv_heads = key.shape[1]
    queries_per_kv = num_heads // num_kv_heads
    if form.kind == "causal":
        allowed = allowed_pairs(Causal(), query, key)
    if allowed is not None and (allowed.shape[1] > 1 or allowed.shape[2] > 1):
        # (B or 1, H or 1, T or 1, S) -> (B or 1, K or 1, H/K * T, S)
        mask_batch, mask_heads, mask_queries, key_len = allowed.shape
        mask_groups = (num_kv_heads, queries_per_kv) if mask_heads > 1 else (1, 1)
        groups = allowed.reshape(mask_batch, *mask_groups, mask_queries, key_len)
        allowed = groups.expand(-1, -1, queries_per_kv, query_len, -1).flatten(2, 3)
    packed = functional.scaled_dot_product_attention(
        query.reshape(batch_size, num_kv_heads, queries_per_kv * query_len, head_dim),
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout_p,
        scale=scale,
    )
    return packed.reshape(batch_size, num_heads, query_len, value.shape[-1])
