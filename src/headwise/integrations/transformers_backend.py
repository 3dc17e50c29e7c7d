"""headwise's attention inside Hugging Face models: `attn_implementation="headwise"`.

transformers looks its attention function up by name in `AttentionInterface`, and what makes the masks for it in
`AttentionMaskInterface`. Both are registered here under our name; models, rotary positions and caches stay theirs.
"""

from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.errors import ConfigError, MissingExtraError, UnsupportedError
from headwise.integrations.told_mask import told_by
from headwise.integrations.transformers_masks import tell_mask
from headwise.masks.conventions import Converted, mask_from_huggingface
from headwise.masks.patterns import Causal, Full
from headwise.ops.attention import attention

NAME = "headwise"
UNREAD_KEYWORDS = ("sinks", "indices", "block_indices")  # of single models, that change which keys count, or how much

served: ContextVar[set[nn.Module] | None] = ContextVar("served", default=None)
"""Where `attend` notes the layers that call it; None: nowhere."""


def register() -> None:
    """Make `attn_implementation="headwise"` known to Hugging Face's transformers, in this process.

    Any model whose attention goes through transformers' interface then computes `headwise.attention`, in training too
    and in `generate`, compiled or not, with the caches of transformers. Grouped keys and values are never repeated.
    Causal masks, windows, packed documents and padding stay descriptions, so that a long text costs no table of all its
    pairs; on a CPU, what a window hides is not computed. A cache of fixed size is read up to its last token only (in a
    compiled step: whole).

    A model with attention of its own is refused, by name, when it asks for a mask or adds one to its scores (Bloom,
    LED, XGLM, the encoder of BigBird-Pegasus): our masks are no numbers to add. One that asks for none, as an image
    encoder, computes on as it did.

    It means what the model's own "eager" does, with softcaps, sinks, position biases and dropout, but for two things: a
    query that may read no key (padding before a text) attends to nothing, where "eager" gives it the mean of all
    values; and weights, with `output_attentions=True`, are those before dropout.

    To register again changes nothing.

    Raises:
        MissingExtraError: transformers is not installed.

    Example:
        >>> register()
        >>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="headwise")
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError("transformers", "hf") from error
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, tell_mask)


def attend(
    module: nn.Module,
    query: Float[Tensor, "#batch num_heads query_len head_dim"],
    key: Float[Tensor, "batch num_kv_heads key_len head_dim"],
    value: Float[Tensor, "batch num_kv_heads key_len v_head_dim"],
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Float[Tensor, "#batch #num_heads #query_len #key_len"] | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " num_heads"] | None = None,
    output_attentions: bool | None = False,
    **keywords: Any,
) -> tuple[Float[Tensor, "batch query_len num_heads v_head_dim"], Float[Tensor, "..."] | None]:
    """Compute one attention call of a Hugging Face model: what is registered as the attention function.

    Args:
        module: the layer; its `is_causal` counts where the keyword is not given (default: causal).
        query: (batch, num_heads, query_len, head_dim).
        key: (batch, num_kv_heads, key_len, head_dim).
        value: (batch, num_kv_heads, key_len, v_head_dim).
        attention_mask: what `tell_mask` made, or a table (batch or 1, num_heads or 1, query_len, key_len): bools,
            True = may attend, or floats to add to the scores. None: causal or full, by `is_causal`.
        dropout: probability with which a weight is dropped in training.
        scaling: factor on the scores. Default: `1 / sqrt(head_dim)`.
        is_causal: read where there is no mask and more than one query.
        position_bias: (batch or 1, num_heads or 1, query_len, key_len), added to the scores.
        softcap: bound of the scores.
        s_aux: (num_heads,) one more logit of each head, without a value.
        output_attentions: whether to return the weights, too.
        keywords: of other attention functions. A `sliding_window` among them is in the mask already.

    Returns:
        (batch, query_len, num_heads, v_head_dim), and (batch, num_heads, query_len, key_len) or None.

    Raises:
        UnsupportedError: a keyword that changes the scores and is not known here.
        ConfigError: a mask that `mask_from_huggingface` refuses or that has not one column for each key.
    """
    for name in UNREAD_KEYWORDS:
        if keywords.get(name) is not None:
            raise UnsupportedError(
                f'{name} must be None for attn_implementation="{NAME}"; {type(module).__name__} gives some '
                '(use "eager" for this model)'
            )
    if not torch.compiler.is_compiling() and (noted := served.get()) is not None:
        noted.add(module)
    query_len, key_len = query.shape[2], key.shape[2]
    num_keys = key_len
    told = told_by(attention_mask)
    if told is not None and told.key_len == key_len:
        converted, num_keys = Converted(told.mask, None), told.num_keys
    elif attention_mask is not None:
        converted = _convert_table(attention_mask, key_len)
    else:
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        is_causal = is_causal and query_len > 1
        # Without a mask there is no past: what stands behind the queries' own keys is slots that wait for tokens.
        num_keys = min(query_len, key_len) if is_causal else key_len
        converted = Converted(Causal() if is_causal else Full(), None)
    bias = converted.bias
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if num_keys < key_len:
        key, value = key[:, :, :num_keys], value[:, :, :num_keys]
        bias = bias[..., :num_keys] if bias is not None and bias.shape[-1] > 1 else bias
    if query.shape[0] != key.shape[0]:  # learned queries, the same for each row
        query = query.expand(key.shape[0], -1, -1, -1)
    result = attention(
        query,
        key,
        value,
        mask=None if isinstance(converted.mask, Full) else converted.mask,
        bias=bias,
        scale=None if scaling is None or scaling == query.shape[-1] ** -0.5 else float(scaling),
        softcap=softcap,
        sink=s_aux,
        dropout_p=dropout if module.training else 0.0,
        return_weights=bool(output_attentions) or _is_collecting(),
    )
    weights = result.weights
    if weights is not None:
        weights = nn.functional.pad(weights, (0, key_len - num_keys)).to(query.dtype)
    return result.output.transpose(1, 2).contiguous(), weights


def _convert_table(table: Tensor, key_len: int) -> Converted:
    """Convert a mask of four dimensions that transformers, a model or a user made."""
    if table.ndim != 4 or table.shape[3] not in (1, key_len):
        raise ConfigError(
            f"attention_mask must have shape (batch, num_heads, query_len, {key_len}) for {key_len} keys; "
            f"got {tuple(table.shape)}"
        )
    return mask_from_huggingface(table.expand(-1, -1, -1, key_len))


def _is_collecting() -> bool:
    """Tell whether the model that runs collects weights: layers do not always pass the wish on."""
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in name for name in collected)
