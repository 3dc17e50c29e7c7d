"""MultiHeadAttention: project to heads, attend in each, project back."""

from dataclasses import fields
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig, Rotary
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Full, Mask
from headwise.nn.projection import make_projection, merge_heads, split_heads
from headwise.ops.attention import attention
from headwise.ops.obstacles import require_impl
from headwise.ops.results import AttentionOutput
from headwise.positions.rotary import RotaryPositions

# What a layer on paper may have and this module has not, each with the value that means: none.
_NOT_BUILT_HERE = {"qk_norm_over": "head", "softcap": None, "sink": False, "output_gate": False, "kv_layer": None}


class MultiHeadAttention(nn.Module):
    """Multi-head attention with grouped heads, for self- and cross-attention.

    `output = out_proj(concat over heads h of softmax(scale * q_h k_g^T where the masks allow) v_g)`, with
    `q = q_proj(query)`, `k = k_proj(key)`, `v = v_proj(value)` cut into heads, and `g = h // queries_per_kv`.

    The meaning is the same in every mode: in training (but for dropout), in evaluation, with or without weights asked
    for, with any `impl`. A query that may read no key attends to nothing: its output is the bias of `out_proj`.

    Args:
        embed_dim: width E of the queries that come in and of the output.
        num_heads: number of query heads.
        num_kv_heads: number of key/value heads. Default: `num_heads`.
        head_dim: size of a query or key head. Default: `embed_dim / num_heads`, which must then be whole.
        v_head_dim: size of a value head. Default: `head_dim`.
        key_dim: width of the tokens that keys are projected from. Default: `embed_dim`.
        value_dim: width of the tokens that values are projected from. Default: `key_dim`.
        projection_bias: True: all four projections have a bias; "qkv": all but `out_proj`; False: none.
        qk_norm: RMSNorm of each query and key head, before positions.
        qk_norm_eps: what that norm adds to the mean square.
        position: Rotary, or None.
        mask: structural mask that belongs to the layer; a call's own mask is combined with it by `&`.
        scale: factor on the scores. Default: `1 / sqrt(head_dim)`.
        dropout_p: probability with which a weight is dropped in training.
        impl: which implementation of `attention` computes it: "auto", "reference", "sdpa", "blocked" or "flex".

    Attributes:
        config: the same settings as an `AttentionConfig`, every default filled in.

    Raises:
        ConfigError: settings that contradict each other.
        UnsupportedError: rotary positions with scaled frequencies, an unknown `impl`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; grouped heads: Ainslie et al. 2023, "GQA".
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        projection_bias: bool | Literal["qkv"] = True,
        qk_norm: bool = False,
        qk_norm_eps: float = 1e-6,
        position: Rotary | None = None,
        mask: Mask = Full(),  # noqa: B008  a frozen value
        scale: float | None = None,
        dropout_p: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__()
        self.config = config = AttentionConfig.from_keywords(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            projection_bias=projection_bias,
            qk_norm=qk_norm,
            qk_norm_eps=qk_norm_eps,
            position=position,
            mask=mask,
            scale=scale,
            dropout_p=dropout_p,
        )
        require_impl(impl)
        self.impl = impl
        has_bias = projection_bias is not False
        self.q_proj = make_projection(embed_dim, num_heads * config.head_dim, bias=has_bias)
        self.k_proj = make_projection(config.key_dim, config.num_kv_heads * config.head_dim, bias=has_bias)
        self.v_proj = make_projection(config.value_dim, config.num_kv_heads * config.v_head_dim, bias=has_bias)
        self.out_proj = make_projection(num_heads * config.v_head_dim, embed_dim, bias=projection_bias is True)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.qk_norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.qk_norm_eps) if qk_norm else None
        _require_positions_built_here(position)
        self.rotary = None if position is None else RotaryPositions(position, config.head_dim)

    @classmethod
    def from_config(cls, config: AttentionConfig, *, impl: str = "auto") -> "MultiHeadAttention":
        """Build the layer that a config describes.

        Raises:
            UnsupportedError: the config has a part that this layer has not (a cap, a sink, a gate, shared keys).
        """
        for name, absent in _NOT_BUILT_HERE.items():
            if getattr(config, name) != absent:
                raise UnsupportedError(
                    f"{name} must be {absent!r} for a layer to be built here; got {getattr(config, name)!r}; "
                    "run the model through transformers"
                )
        _require_positions_built_here(config.position)
        settings = {field.name: getattr(config, field.name) for field in fields(config)}
        return cls(**{name: value for name, value in settings.items() if name not in _NOT_BUILT_HERE}, impl=impl)

    def forward(
        self,
        query: Float[Tensor, "batch query_len embed_dim"],
        key: Float[Tensor, "batch key_len key_dim"] | None = None,
        value: Float[Tensor, "batch key_len value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch query_len"] | Int[Tensor, " query_len"] | None = None,
    ) -> Float[Tensor, "batch query_len embed_dim"]:
        """Let each token of `query` gather what it needs from the tokens of `key` and `value`.

        Args:
            query: (batch, query_len, embed_dim).
            key: (batch, key_len, key_dim) tokens to attend to. Default: `query` (self-attention).
            value: (batch, key_len, value_dim) tokens to gather from. Default: `key`.
            mask: which keys a query may read, beyond what the layer's own mask allows.
            positions: (query_len,) or (batch, query_len) position of each token, for a layer with rotary positions.
                Default: 0, 1, 2, ...

        Returns:
            (batch, query_len, embed_dim).

        Raises:
            ConfigError: a width that the layer was not built for, a mask that is no Mask, positions without a
                use or not one whole number a token.
            UnsupportedError: rotary positions in cross-attention.
        """
        return self.attend(query, key, value, mask=mask, positions=positions).output

    def attend(
        self,
        query: Float[Tensor, "batch query_len embed_dim"],
        key: Float[Tensor, "batch key_len key_dim"] | None = None,
        value: Float[Tensor, "batch key_len value_dim"] | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch query_len"] | Int[Tensor, " query_len"] | None = None,
        return_weights: bool = False,
        return_logsumexp: bool = False,
    ) -> AttentionOutput:
        """Do what `forward` does and return what the heads saw, too.

        Args:
            query, key, value, mask, positions: as of `forward`.
            return_weights: whether to return the weights of each head, before dropout.
            return_logsumexp: whether to return the logarithm of each softmax's sum.

        Returns:
            `output`: the layer's own (batch, query_len, embed_dim), after `out_proj`. `weights`: (batch, num_heads,
            query_len, key_len). `logsumexp`: (batch, num_heads, query_len). None for what was not asked for.
        """
        is_self_attention = key is None or key is query
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value, positions, is_self_attention)

        q = split_heads(self.q_proj(query), self.config.num_heads)
        k = split_heads(self.k_proj(key), self.config.num_kv_heads)
        v = split_heads(self.v_proj(value), self.config.num_kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary is not None:
            if positions is None:
                positions = torch.arange(query.shape[1], device=query.device)
            q, k = self.rotary(q, positions), self.rotary(k, positions)

        result = attention(
            q,
            k,
            v,
            mask=self.config.mask if mask is None else self.config.mask & mask,
            scale=self.config.scale,
            dropout_p=self.config.dropout_p if self.training else 0.0,
            return_weights=return_weights,
            return_logsumexp=return_logsumexp,
            impl=self.impl,
        )
        return result._replace(output=self.out_proj(merge_heads(result.output)))

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor | None, is_self_attention: bool
    ) -> None:
        config = self.config
        for name, tokens, width_name in (
            ("query", query, "embed_dim"),
            ("key", key, "key_dim"),
            ("value", value, "value_dim"),
        ):
            width = getattr(config, width_name)
            if tokens.dim() != 3 or tokens.shape[-1] != width:
                raise ConfigError(
                    f"{name} must have shape (batch, seq_len, {width_name} = {width}); got {tuple(tokens.shape)}"
                )
        if self.rotary is None and positions is not None:
            raise ConfigError(
                "positions are read by rotary positions alone, and this layer has none (position=None); "
                "leave them out, or build the layer with position=Rotary()"
            )
        if self.rotary is not None and not is_self_attention:
            raise UnsupportedError(
                "a layer with rotary positions must attend within one text, since they encode distances there; "
                "got a key of its own; leave key and value out, or build the layer with position=None"
            )


def _require_positions_built_here(position: object) -> None:
    is_whole_rotary = isinstance(position, Rotary) and position.rotary_dim is None
    if position is not None and not is_whole_rotary:
        raise UnsupportedError(
            f"position must be None or Rotary over whole heads for a layer to be built here; got {position}; "
            "run the model through transformers"
        )
