"""The public operation: check the call, choose an implementation, call it."""

from contextlib import nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headwise.masks.patterns import Mask
from headwise.ops.bias import Bias
from headwise.ops.blocked.attention import blocked_attention
from headwise.ops.call import Call
from headwise.ops.choose import explain_choice
from headwise.ops.decode import decode_attention
from headwise.ops.flex import flex_attention
from headwise.ops.listening import current_listener
from headwise.ops.prepare import autocast_dtype, prepare
from headwise.ops.reference import reference_attention
from headwise.ops.results import AttentionOutput, Choice
from headwise.ops.sdpa import sdpa_attention
from headwise.ops.shortcut import remember, take_shortcut


def attention(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, "..."] | Bias | None = None,
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
    query_positions: Int[Tensor, "... query_len"] | None = None,
    key_positions: Int[Tensor, "... key_len"] | None = None,
    scale: int | float | None = None,
    softcap: int | float | None = None,
    sink: Float[Tensor, " num_heads"] | None = None,
    dropout_p: int | float = 0.0,
    dropout_seed: int | None = None,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    impl: str = "auto",
) -> AttentionOutput:
    """Compute, for each head, the mean of the values that a query may read, weighted by how well their keys match it.

    `scores = softcap * tanh(scale * query key^T / softcap) + bias`

    `output = softmax(scores where the mask allows) value`

    Query head `h` uses key/value head `h // (num_heads // num_kv_heads)`; keys and values are never expanded. A query
    that may read no key gives output 0, weights 0 and logsumexp -inf, with finite gradients. Training or not, weights
    asked for or not, and any implementation: the meaning is the same.

    A key/value slot that no query may read can hold anything, NaN too, and so can the bias of a masked pair. A slot
    that is masked for some queries alone must be finite and have a finite float32 score with those too, as the kernels
    add -inf to a masked score and multiply a masked value by 0; the same goes for its value's product with the output's
    gradient. A bias of -inf gives its pair a weight of 0, and a query all of whose pairs have it is one without a key;
    but it hides nothing: the pair counts as read.

    Args:
        query: (batch, num_heads, query_len, head_dim).
        key: (batch, num_kv_heads, key_len, head_dim).
        value: (batch, num_kv_heads, key_len, v_head_dim).
        mask: which keys a query may read. Default: all.
        bias: what is added to the scores: a tensor that broadcasts to (batch, num_heads, query_len, key_len), or a
            function of head and positions (`headwise.ops.bias.Bias`), such as ALiBi. Both may learn. Default: nothing.
        query_index: (query_len,) or (batch, query_len), the queries' places in their stream, which masks read.
            Default: the queries stand at the end of the keys: query `i` of `T` has index `S - T + i`.
        key_index: (key_len,) or (batch, key_len), the keys' places; -1 = an empty slot, never read. Default: 0, 1, 2...
        query_positions: (query_len,) or (batch, query_len), the queries' positions, which a bias that is a function
            reads and nothing else. Default: their indices.
        key_positions: (key_len,) or (batch, key_len), the keys' positions, as above.
        scale: factor on the scores. Default: `1 / sqrt(head_dim)`.
        softcap: bound that the scores approach on either side; above 0. Default: none.
        sink: (num_heads,) one more logit of each query head, which may learn. It takes its share of the weights and has
            no value: weights sum to 1 without that share. Default: none.
        dropout_p: probability with which a weight is dropped (the others grow by `1 / (1 - dropout_p)`). It acts
            whenever it is above 0: a module gives 0 outside of training.
        dropout_seed: from 0 to 2^63 - 1. Which weights are dropped then follows from the seed, batch row, head and
            indices alone, whatever computes it. Default: torch's generator draws them.
        return_weights: whether to return the weights, before dropout, at least float32. Needs memory for every pair.
        return_logsumexp: whether to return the logarithm of the softmax's sum over the keys, without the sink, at least
            float32.
        impl: "reference" (plain tensor operations), "sdpa" (torch's fused kernels), "blocked" (the allowed pairs alone,
            in memory linear in the lengths), "decode" (few queries, each key read once, no gradients), "flex" (torch's
            FlexAttention), or "auto": the first of `choose.RULES` that holds; on a GPU "sdpa" unless something is asked
            for that it does not give.

    Returns:
        output (batch, num_heads, query_len, v_head_dim) in the query's dtype (under autocast: in autocast's), weights
        (batch, num_heads, query_len, key_len) and logsumexp (batch, num_heads, query_len), None if not asked for.

    Raises:
        HeadwiseError: shapes, dtypes or devices that do not fit together, or a number out of range.
        ConfigError: `mask` is no Mask, or was made for another batch size.
        UnsupportedError: an unknown `impl`, or one that cannot give what is asked for; the text names those that can.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
    """
    is_plain = (
        (bias is None and scale is None and softcap is None and sink is None)
        and (query_index is None and key_index is None and query_positions is None and key_positions is None)
        and (dropout_p == 0 and dropout_seed is None and not return_weights and not return_logsumexp)
    )
    listener = current_listener()
    if is_plain and listener is None and (output := take_shortcut(query, key, value, mask, impl)) is not None:
        return AttentionOutput(output)
    call = Call(
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        query_index=query_index,
        key_index=key_index,
        query_positions=query_positions,
        key_positions=key_positions,
        scale=scale,
        softcap=softcap,
        sink=sink,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
        known={},
    )
    call, resolved = prepare(call, impl)
    if listener is not None:
        listener(call)
    if is_plain and resolved == "sdpa":
        remember(call, impl)
    # Inside, softmax sums are float32 or better, whatever autocast would make of them.
    device_type = query.device.type
    with nullcontext() if autocast_dtype(device_type) is None else torch.autocast(device_type, enabled=False):
        return _IMPLS[resolved](call)


def choose_impl(
    query: Float[Tensor, "batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    *,
    mask: Mask | None = None,
    bias: Float[Tensor, "..."] | Bias | None = None,
    query_index: Int[Tensor, "... query_len"] | None = None,
    key_index: Int[Tensor, "... key_len"] | None = None,
    query_positions: Int[Tensor, "... query_len"] | None = None,
    key_positions: Int[Tensor, "... key_len"] | None = None,
    scale: int | float | None = None,
    softcap: int | float | None = None,
    sink: Float[Tensor, " num_heads"] | None = None,
    dropout_p: int | float = 0.0,
    dropout_seed: int | None = None,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    impl: str = "auto",
) -> Choice:
    """Say which implementation and kernel `attention` uses for the same arguments, without running it, and why.

    Arguments as of `attention`.

    Returns:
        The implementation, its kernel, and a sentence for each faster one that is not taken.

    Raises:
        HeadwiseError: as `attention`.
    """
    call = Call(
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        query_index=query_index,
        key_index=key_index,
        query_positions=query_positions,
        key_positions=key_positions,
        scale=scale,
        softcap=softcap,
        sink=sink,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
        known={},
    )
    call, resolved = prepare(call, impl)
    return explain_choice(call, resolved, was_asked_for=impl != "auto")


_IMPLS = {
    "reference": reference_attention,
    "sdpa": sdpa_attention,
    "blocked": blocked_attention,
    "decode": decode_attention,
    "flex": flex_attention,
}
