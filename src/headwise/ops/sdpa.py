"""Adapter to torch's fused kernels: scaled_dot_product_attention with our meaning of masks, groups and empty rows."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional

from headwise.kernels import KernelChoice, SdpaCase, choose_packing, width_with_sink
from headwise.ops.call import Call
from headwise.ops.lowering import allowed_pairs, form_of, hide_idle, skip_unread_keys
from headwise.ops.results import AttentionOutput
from headwise.ops.scores import bias_values
from headwise.ops.sink import add_sink_key

# Where every kernel gives 0 for a query without a key, with gradients of 0; tested there.
ZERO_WITHOUT_A_KEY = ("cpu",)

# Where kernels add a float32 bias to the scores of half precision as it is; elsewhere it must have the query's dtype.
TAKES_WIDE_BIAS = ("cpu",)


def sdpa_attention(call: Call) -> AttentionOutput:
    """Compute attention with `F.scaled_dot_product_attention`.

    What torch means otherwise is settled here: its `is_causal` aligns the first query with the first key, so it is used
    for squares alone, and its kernels let NaN in masked slots through, so such slots are hidden wherever the lengths do
    not prove that there are none. A query without a key is let see every key, and its output set to 0 afterwards, on
    devices whose kernels may give it NaN. A bias is a float mask, and a sink one more key.
    """
    call = skip_unread_keys(call)
    if call.score_scale <= 0:  # torch's CPU kernel scales what `is_causal` hides too, and -inf turns into inf or NaN
        is_zero = call.score_scale == 0
        call = call._replace(query=call.query * (0 if is_zero else -1), scale=1 if is_zero else -call.score_scale)
    form = form_of(call)
    is_packed = _is_packed(call)
    is_causal = form.kind == "causal" and call.bias is None and not is_packed
    mask = is_empty = None
    if form.kind != "none" and not is_causal:
        mask = allowed_pairs(call)
        if form.has_idle:
            call, _ = hide_idle(call, mask)
    if call.bias is not None:
        mask = _bias_mask(call, mask)
    may_be_empty = mask is not None and (form.has_idle or call.bias is not None)
    if call.sink is not None:  # a key that every row has, so that none is empty
        query, key, value, mask, scale = add_sink_key(call, mask, is_causal=is_causal)
    else:
        query, key, value, scale = *call[:3], call.score_scale
        if mask is not None and may_be_empty and call.device_type not in ZERO_WITHOUT_A_KEY:
            mask, is_empty = _open_empty_rows(mask)
    output = _call_torch(
        query, key, value, mask, is_causal=is_causal, is_packed=is_packed, dropout_p=call.dropout_p, scale=scale
    )
    if call.sink is not None:
        output = output[:, :, output.shape[2] - call.query.shape[2] :, : call.value.shape[-1]]
    return AttentionOutput(output if is_empty is None else output.masked_fill(is_empty, 0.0))


def _is_packed(call: Call) -> bool:
    """Tell whether the queries of a group are packed: a single one always, whatever the lengths."""
    is_grouped = call.query.shape[1] != call.key.shape[1]
    return is_grouped and (call.query.shape[2] == 1 or plan_kernel(call)[0])


def plan_kernel(call: Call) -> tuple[bool, KernelChoice]:
    """Decide whether the queries of a group are packed (see `choose_packing`), and say which kernel then runs."""
    call = skip_unread_keys(call)
    query, key, value = call[:3]
    num_heads, query_len, head_dim = query.shape[1:]
    key_len, v_head_dim = value.shape[2:]
    kind = form_of(call).kind
    if call.sink is not None:
        v_head_dim = width_with_sink(head_dim) if v_head_dim == head_dim else v_head_dim
        head_dim = width_with_sink(head_dim)
        query_len, key_len = query_len + (kind == "causal" and call.bias is None), key_len + 1
    queries_per_kv = num_heads // key.shape[1]
    is_cuda = call.device_type == "cuda"
    bias = call.bias
    learns_bias = any(one.requires_grad for one in call.bias_tensors)  # a sink is none: it goes into the queries
    unpacked = SdpaCase(
        device="cuda" if is_cuda else "cpu",
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        mask="bool" if bias is not None else kind,
        grouped=queries_per_kv > 1,
        dropout_p=call.dropout_p,
        requires_grad=call.needs_gradient,
        # A graph serves any lengths: words about them would tie it to those it is made with.
        query_len=None if torch.compiler.is_compiling() else query_len,
        key_len=None if torch.compiler.is_compiling() else key_len,
        contiguous=call.sink is not None or all(tensor.stride(-1) == 1 for tensor in call[:3]),
        compute_capability=torch.cuda.get_device_capability(query.device) if query.is_cuda else (8, 0),
        mask_dims=4,
        mask_requires_grad=learns_bias and torch.is_grad_enabled(),
    )
    return choose_packing(unpacked, queries_per_kv)


def _bias_mask(
    call: Call, allowed: Bool[Tensor, "#batch #num_heads #query_len key_len"] | None
) -> Float[Tensor, "#batch #num_heads #query_len key_len"]:
    """Return the bias where the mask allows, and -inf elsewhere."""
    bias = bias_values(call)
    assert bias is not None
    if call.device_type not in TAKES_WIDE_BIAS:
        bias = bias.to(call.query.dtype)
    if allowed is not None:
        return torch.where(allowed, bias, -torch.inf)
    return bias.expand(-1, -1, -1, call.key.shape[2])


def _open_empty_rows(
    mask: Shaped[Tensor, "#batch #num_heads #query_len key_len"],
) -> tuple[Shaped[Tensor, "#batch #num_heads #query_len key_len"], Bool[Tensor, "#batch #num_heads #query_len 1"]]:
    """Let queries without a key see all, and say which they are."""
    if mask.dtype == torch.bool:
        is_empty = ~mask.any(-1, keepdim=True)
        return mask | is_empty, is_empty
    is_empty = mask.isneginf().all(-1, keepdim=True)
    return mask.masked_fill(is_empty, 0.0), is_empty


def _call_torch(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    mask: Shaped[Tensor, "#batch #num_heads #query_len key_len"] | None,
    *,
    is_causal: bool,
    is_packed: bool,
    dropout_p: int | float,
    scale: int | float,
) -> Float[Tensor, "batch num_heads query_len v_head_dim"]:
    shape = (*query.shape[:3], value.shape[-1])
    is_grouped = query.shape[1] != key.shape[1]
    if is_packed:
        query, mask = _pack(query, mask, key.shape[1])
    output = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=bool(is_grouped and not is_packed),  # a tensor, where torch.jit traces
    )
    return output.reshape(shape)


def _pack(query: Tensor, mask: Tensor | None, num_kv_heads: int) -> tuple[Tensor, Tensor | None]:
    """Lay the queries of the heads of one kv head side by side, and their mask with them."""
    batch_size, num_heads, query_len, head_dim = query.shape
    queries_per_kv = num_heads // num_kv_heads
    query = query.reshape(batch_size, num_kv_heads, queries_per_kv * query_len, head_dim)
    if mask is not None and (mask.shape[1] > 1 or mask.shape[2] > 1):
        # (B or 1, H or 1, T or 1, S) -> (B or 1, K or 1, H/K * T, S)
        mask_batch, mask_heads, mask_queries, key_len = mask.shape
        mask_groups = (num_kv_heads, queries_per_kv) if mask_heads > 1 else (1, 1)
        groups = mask.reshape(mask_batch, *mask_groups, mask_queries, key_len)
        mask = groups.expand(-1, -1, queries_per_kv, query_len, -1).flatten(2, 3)
    return query, mask
