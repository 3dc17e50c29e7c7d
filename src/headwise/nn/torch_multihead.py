"""TorchMultiheadAttention: `torch.nn.MultiheadAttention` by its own names, with one meaning in every mode."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from headwise.config.attention import AttentionConfig
from headwise.config.checks import require_flag, shown
from headwise.errors import ConfigError
from headwise.masks.conventions import Converted, mask_from_torch
from headwise.nn.checks import explain_refusal, require_plain
from headwise.nn.projection import merge_heads, split_heads
from headwise.ops.attention import attention
from headwise.ops.products import linear


class TorchMultiheadAttention(nn.MultiheadAttention):
    """A drop-in for `torch.nn.MultiheadAttention`: its arguments, masks, results, parameters and `state_dict`.

    `output = out_proj(concat over heads h of softmax(q_h k_h^T / sqrt(head_dim) + masks) v_h)`.

    Where torch's own module does something else in another mode, or nothing defined, this one always does the same:

    - A query that may read no key attends to nothing: its weights are 0 and its output is the bias of `out_proj`, in
      training, in evaluation, with or without weights asked for. torch gives NaN or that bias, by the mode.
    - `is_causal` and the masks all hold, so that a wrong hint hides no mask, and it needs no `attn_mask` beside it.
      Where there are not as many queries as keys, "causal" could mean two things, and the `attn_mask` holds alone.
    - Every query sees the keys that `add_bias_kv` and `add_zero_attn` add. In torch none does in a causal call with
      `need_weights=False`.
    - The lowest number of a dtype in a mask drops a key as -inf does. A text with nothing else gets weights of 0; in
      torch each key the same.
    - The weights that are returned are those before dropout, so that they sum to 1.
    - torch's `nn.TransformerEncoderLayer` calls the module in every mode: its fused path for evaluation, which reads
      the parameters and passes the module by, is not taken. An `nn.TransformerEncoder` that was made with torch's own
      attention inside, replaced since, still makes nested tensors: set its `use_nested_tensor` to False.
    - `torch.jit.script` cannot read it, and `torch.fx` looks into it, as into any module that is not torch's own,
      unless its tracer says that it is a leaf. `torch.compile`, `torch.export` and `torch.jit.trace` take it.

    In new code `headwise.MultiHeadAttention` is the better layer: it returns one thing, and its masks are objects.

    Args:
        embed_dim: width E of the queries that come in and of the output.
        num_heads: number of heads, which must divide `embed_dim`.
        dropout: probability with which a weight is dropped in training.
        bias: whether the projections have biases.
        add_bias_kv: whether one more key and value, which are learned, stand behind those of every text.
        add_zero_attn: whether one more key and value of zeros stand behind all others.
        kdim: width of the tokens that keys are projected from. Default: `embed_dim`.
        vdim: width of the tokens that values are projected from. Default: `embed_dim`.
        batch_first: True: tokens come and go as (batch, seq_len, width); False: as (seq_len, batch, width).
        device, dtype: of the parameters.

    Raises:
        ConfigError: a size or probability out of range, heads that do not divide the width, a flag that is neither True
            nor False, another dtype than a floating-point one.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        AttentionConfig.from_keywords(  # checks the settings
            embed_dim=embed_dim,
            num_heads=num_heads,
            key_dim=kdim,
            value_dim=embed_dim if vdim is None else vdim,
            projection_bias=bias,
            dropout_p=dropout,
        )
        flags = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn, "batch_first": batch_first}
        for name, flag in flags.items():
            require_flag(name, flag)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ConfigError(f"dtype must be a floating-point dtype of torch, or None; got {shown(dtype)}")
        super().__init__(
            embed_dim,
            num_heads,
            dropout=dropout,
            bias=bias,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # torch's encoder layers read it to decide whether their fused path may pass this module by.
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        value: Float[Tensor, "..."],
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."] | None]:
        """Let each token of `query` gather what it needs from the tokens of `key` and `value`.

        Shapes are of a `batch_first` module; without it the first two sizes of tokens change places, not those of masks
        and weights. One text alone comes and goes without its batch size.

        Args:
            query: (batch, query_len, embed_dim).
            key: (batch, key_len, kdim).
            value: (batch, key_len, vdim).
            key_padding_mask: (batch, key_len) bools, True = drop the key, or floats to add to its scores.
            need_weights: whether to return the weights, too; they need memory for every pair.
            attn_mask: (query_len, key_len) or (batch * num_heads, query_len, key_len) bools, True = drop the pair, or
                floats to add to its score.
            average_attn_weights: True: the mean of the heads' weights is returned; False: those of each head.
            is_causal: whether no query sees a later key; the masks hold as well. With another number of queries than
                of keys it says nothing that `attn_mask`, which must then be given, does not.

        Returns:
            The output (batch, query_len, embed_dim), and the weights before dropout, (batch, query_len, keys) or
            (batch, num_heads, query_len, keys), or None. Added keys are the last of `keys`.

        Raises:
            ConfigError: a width, batch size, length or mask that does not fit, another dtype or device than the
                weights', a causal call of another number of queries than keys without an `attn_mask`, a mask that
                `headwise.mask_from_torch` refuses.
            UnsupportedError: nested or sparse tensors.
        """
        self._check(query, key, value, key_padding_mask, attn_mask, is_causal)
        is_batched = query.dim() == 3
        try:
            tokens = self._project(query, key, value)
        except RuntimeError:
            explain_refusal(self, query=query, key=key, value=value)
            raise
        if not is_batched:
            tokens = tuple(each.unsqueeze(0) for each in tokens)
        elif not self.batch_first:
            tokens = tuple(each.transpose(0, 1) for each in tokens)
        q, k, v = self._split_and_extend(*tokens)

        is_causal = is_causal and tokens[0].shape[1] == tokens[1].shape[1]
        mask, bias = self._read_masks(key_padding_mask, attn_mask, is_causal, tokens, num_keys=k.shape[2])
        result = attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            dropout_p=self.dropout if self.training else 0.0,
            return_weights=need_weights,
        )
        merged = merge_heads(result.output)
        if not is_batched:
            merged = merged.squeeze(0)
        elif not self.batch_first:
            merged = merged.transpose(0, 1)
        output: Tensor = self.out_proj(merged)
        if result.weights is None:
            return output, None
        weights = (result.weights.mean(1) if average_attn_weights else result.weights).to(output.dtype)
        return output, weights if is_batched else weights.squeeze(0)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Project the tokens, in the layout that they came in."""
        if self.in_proj_weight is not None and query is key and key is value:
            # One product instead of three.
            return linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        parts = zip((query, key, value), weights, biases, strict=True)
        return tuple(linear(tokens, weight, bias) for tokens, weight, bias in parts)

    def _split_and_extend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cut batch-first tokens into heads, with the keys and values that the module adds behind the others."""
        if self.bias_k is not None and self.bias_v is not None:
            batch_size = k.shape[0]
            k = torch.cat([k, self.bias_k.expand(batch_size, -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(batch_size, -1, -1)], dim=1)
        q, k, v = (split_heads(tokens, self.num_heads) for tokens in (q, k, v))
        if self.add_zero_attn:
            k, v = (functional.pad(heads, (0, 0, 0, 1)) for heads in (k, v))
        return q, k, v

    def _read_masks(
        self,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        tokens: tuple[Tensor, ...],
        *,
        num_keys: int,
    ) -> Converted:
        """Convert the masks of a call; every query sees the keys that the module adds."""
        query_len, key_len = tokens[0].shape[1], tokens[1].shape[1]
        num_added = num_keys - key_len
        if num_added:
            key_padding_mask, attn_mask = (
                None if mask is None else functional.pad(mask, (0, num_added)) for mask in (key_padding_mask, attn_mask)
            )
        converted = mask_from_torch(
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            is_causal=is_causal and not num_added,
            num_heads=self.num_heads,
        )
        if is_causal and num_added:
            # To `Causal` the added keys would be the latest of all.
            later = torch.ones(query_len, key_len, dtype=torch.bool, device=tokens[0].device).triu(1)
            causal = mask_from_torch(attn_mask=functional.pad(later, (0, num_added)))
            converted = Converted(converted.mask & causal.mask, converted.bias)
        return converted

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> None:
        named = {"query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)}
        for name, (tokens, _) in named.items():
            require_plain(name, tokens)
        layout = "batch, seq_len" if self.batch_first else "seq_len, batch"
        for name, (tokens, width) in named.items():
            if query.dim() not in (2, 3) or tokens.dim() != query.dim() or tokens.shape[-1] != width:
                raise ConfigError(
                    f"{name} must have shape ({layout}, {width}), or (seq_len, {width}) in a call of one text; "
                    f"got {tuple(tokens.shape)}"
                )
        is_batched, length_at = query.dim() == 3, int(query.dim() == 3 and self.batch_first)
        batch_size = query.shape[1 - length_at] if is_batched else 1
        query_len, key_len = query.shape[length_at], key.shape[length_at]
        for name, tokens in (("key", key), ("value", value)):
            if is_batched and tokens.shape[1 - length_at] != batch_size:
                got = tokens.shape[1 - length_at]
                raise ConfigError(f"{name} must have the batch size of the query, {batch_size}; got {got}")
        if value.shape[length_at] != key_len:
            raise ConfigError(f"value must be as long as key, {key_len}; got {value.shape[length_at]}")
        if is_causal and query_len != key_len and attn_mask is None:
            raise ConfigError(
                "is_causal needs as many queries as keys, or an attn_mask that says what it means (torch aligns them "
                f"at the first key, headwise at the last one); got {query_len} and {key_len}, and no attn_mask"
            )
        paddings = [(batch_size, key_len)] if is_batched else [(key_len,)]
        pairs = [(query_len, key_len), (batch_size * self.num_heads, query_len, key_len)]
        for name, mask, shapes in (
            ("key_padding_mask", key_padding_mask, paddings),
            ("attn_mask", attn_mask, pairs),
        ):
            if mask is not None:
                _require_mask(name, mask, shapes)


def _require_mask(name: str, mask: object, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ConfigError unless a mask is a tensor of one of the shapes."""
    if not isinstance(mask, Tensor):
        raise ConfigError(
            f"{name} must be a tensor, True = drop or floats to add; got {shown(mask)} (masks of headwise are for "
            "headwise.MultiHeadAttention)"
        )
    if tuple(mask.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ConfigError(f"{name} must have shape {expected}; got {tuple(mask.shape)}")
