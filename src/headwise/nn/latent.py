"""LatentAttention: keys and values of all heads from one small vector a token, which is all that a cache holds."""

from dataclasses import fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headwise.caches.base import KVCache
from headwise.config.checks import require_instance
from headwise.config.latent import LatentAttentionConfig
from headwise.config.position import Rotary
from headwise.masks.patterns import Causal, Mask
from headwise.nn.cached import check_cache, remember
from headwise.nn.checks import explain_refusal, require_tokens
from headwise.nn.projection import is_plain, make_projection, merge_heads, project, split_heads
from headwise.ops.attention import attention
from headwise.ops.obstacles import require_impl
from headwise.positions.checks import require_positions
from headwise.positions.rotary import RotaryPositions


class LatentAttention(nn.Module):
    """Multi-head latent attention (MLA).

    `latent = kv_norm(x A)`, and for each head h of the scores: `k_h = [latent B_h, rotate(x R)]`, `v_h = latent C_h`,
    `q_h = [n_h, rotate(r_h)]` from `q_norm(x A_q) B_q` or one product, `output = out_proj(concat_h softmax(scale q_h
    k_h^T where the mask allows) v_h)`. The rotary key `x R` is shared by all heads.

    With a cache, `[latent, rotated x R]` is kept of each token and nothing else. Few queries on many keys are answered
    without keys and values of heads: `n_h (latent B_h)^T = (n_h B_h^T) latent^T`, so that each query is taken into the
    latents' space, all heads attend to the same latents, and what they gather is multiplied by `C_h` afterwards. Many
    queries on few keys take keys and values of all heads: whichever needs fewer multiplications.

    Args:
        embed_dim: width E of the tokens.
        num_heads: number of heads.
        q_lora_rank: rank of the queries' projection; None: one matrix, no norm.
        kv_lora_rank: width of the latent vector.
        qk_nope_head_dim: size of a query or key head's part without positions.
        qk_rope_head_dim: size of its rotary part, even.
        v_head_dim: size of a value head.
        projection_bias: whether the down-projections and `out_proj` have biases.
        norm_eps: what the norms of the latents add to the mean square.
        position: how the rotary parts are turned.
        mask: structural mask that belongs to the layer.
        scale: factor on the scores. Default: `1 / sqrt(qk_nope_head_dim + qk_rope_head_dim)`.
        dropout_p: probability with which a weight is dropped in training.
        impl: which implementation of `attention` computes it.

    Attributes:
        config: the same settings as a `LatentAttentionConfig`.

    Raises:
        ConfigError: settings out of range.
        UnsupportedError: an unknown `impl`.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix C.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        projection_bias: bool = False,
        norm_eps: float = 1e-6,
        position: Rotary = Rotary(pairing="interleaved"),  # noqa: B008  a frozen value
        mask: Mask = Causal(),  # noqa: B008  a frozen value
        scale: float | None = None,
        dropout_p: float = 0.0,
        impl: str = "auto",
    ):
        super().__init__()
        self.config = config = LatentAttentionConfig(
            embed_dim=embed_dim,
            num_heads=num_heads,
            q_lora_rank=q_lora_rank,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            projection_bias=projection_bias,
            norm_eps=norm_eps,
            position=position,
            mask=mask,
            scale=scale,  # type: ignore[arg-type]
            dropout_p=dropout_p,
        )
        require_impl(impl)
        self.impl = impl
        query_dim = num_heads * config.head_dim
        if q_lora_rank is None:
            self.q_proj: nn.Module = make_projection(embed_dim, query_dim, bias=False)
        else:
            self.q_proj = nn.Sequential(
                make_projection(embed_dim, q_lora_rank, bias=projection_bias),
                nn.RMSNorm(q_lora_rank, eps=config.norm_eps),
                make_projection(q_lora_rank, query_dim, bias=False),
            )
        self.kv_down_proj = make_projection(embed_dim, config.cached_dim, bias=projection_bias)
        self.kv_norm = nn.RMSNorm(kv_lora_rank, eps=config.norm_eps)
        self.kv_up_proj = make_projection(kv_lora_rank, num_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        self.out_proj = make_projection(num_heads * v_head_dim, embed_dim, bias=projection_bias)
        self.rotary = RotaryPositions(position, qk_rope_head_dim)

    @classmethod
    def from_config(cls, config: LatentAttentionConfig, *, impl: str = "auto") -> "LatentAttention":
        """Build the layer that a config describes."""
        require_instance("config", config, LatentAttentionConfig)
        return cls(**{field.name: getattr(config, field.name) for field in fields(config)}, impl=impl)

    def forward(
        self,
        tokens: Float[Tensor, "batch seq_len embed_dim"],
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
        cache: KVCache | None = None,
        real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    ) -> Float[Tensor, "batch seq_len embed_dim"]:
        """Let each token gather what it needs from those that the masks let it see.

        Args:
            tokens: (batch, seq_len, embed_dim).
            mask: which keys a query may read, beyond what the layer's own mask allows.
            positions: (seq_len,) or (batch, seq_len) position of each token. Default: its index.
            cache: what holds the latents of earlier calls and takes those of this one.
            real_tokens: (batch, seq_len) which tokens are no padding, with a cache. Default: all.

        Raises:
            ConfigError: a shape, dtype or device that does not fit; what the cache refuses.
        """
        config = self.config
        require_tokens("tokens", tokens, "embed_dim", config.embed_dim)
        batch_size, seq_len, _ = tokens.shape
        if positions is not None:
            require_positions(positions, tokens, batch_size=batch_size, seq_len=seq_len)
        check_cache(cache, mask, real_tokens, batch_size=batch_size, num_tokens=seq_len, position=config.position)
        try:
            query = split_heads(project(self.q_proj, tokens), config.num_heads)
            latent, rotary_key = torch.split(
                project(self.kv_down_proj, tokens), [config.kv_lora_rank, config.qk_rope_head_dim], dim=-1
            )
        except RuntimeError:
            explain_refusal(self, tokens=tokens)
            raise
        if cache is None:
            index = torch.arange(seq_len, device=tokens.device)
        else:
            index = cache.next_index(batch_size, seq_len, real_tokens=real_tokens, device=tokens.device)
        places = index if positions is None else positions
        plain_query, rotary_query = torch.split(query, [config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)
        rotary_query = self.rotary(rotary_query, places)
        rotary_key = self.rotary(rotary_key.unsqueeze(1), places)
        kept = torch.cat([self.kv_norm(latent).unsqueeze(1), rotary_key], dim=-1)  # (B, 1, S, R)
        own_mask = config.mask if mask is None else config.mask & mask
        arguments: dict[str, object] = {"mask": own_mask}
        if cache is not None:
            found = remember(cache, kept, kept[..., :0], mask=own_mask, index=index, real_tokens=real_tokens)
            kept = found.key
            arguments = {"mask": found.mask, "query_index": found.query_index, "key_index": found.key_index}
        arguments |= {
            "scale": config.scale,
            "dropout_p": config.dropout_p if self.training else 0.0,
            "impl": self.impl,
        }
        by_latents = is_plain(self.kv_up_proj) and self._is_less_by_latents(seq_len, kept.shape[2])
        attend = self._attend_to_latents if by_latents else self._attend_by_heads
        output: Tensor = project(self.out_proj, merge_heads(attend(plain_query, rotary_query, kept, arguments)))
        return output

    def _is_less_by_latents(self, query_len: int, key_len: int) -> bool:
        """Tell whether attending to latents takes fewer multiplications than making keys and values of heads."""
        config = self.config
        rank, rotary = config.kv_lora_rank, config.qk_rope_head_dim
        both = config.qk_nope_head_dim + config.v_head_dim
        pairs = query_len * key_len
        return pairs * (2 * rank + rotary) + query_len * rank * both < pairs * (both + rotary) + key_len * rank * both

    def _attend_by_heads(
        self, plain_query: Tensor, rotary_query: Tensor, kept: Tensor, arguments: dict[str, object]
    ) -> Tensor:
        """Attend with keys and values of every head: (B, H, T, V)."""
        config = self.config
        latent, rotary_key = torch.split(kept, [config.kv_lora_rank, config.qk_rope_head_dim], dim=-1)
        keys_and_values = split_heads(project(self.kv_up_proj, latent.squeeze(1)), config.num_heads)
        plain_key, value = torch.split(keys_and_values, [config.qk_nope_head_dim, config.v_head_dim], dim=-1)
        key = torch.cat([plain_key, rotary_key.expand(-1, config.num_heads, -1, -1)], dim=-1)
        query = torch.cat([plain_query, rotary_query], dim=-1)
        return attention(query, key, value, **arguments).output  # type: ignore[arg-type]

    def _attend_to_latents(
        self, plain_query: Tensor, rotary_query: Tensor, kept: Tensor, arguments: dict[str, object]
    ) -> Tensor:
        """Attend to the latents, which all heads share: (B, H, T, V)."""
        config = self.config
        both = config.qk_nope_head_dim + config.v_head_dim
        weight: Tensor = self.kv_up_proj.weight.view(config.num_heads, both, config.kv_lora_rank)
        to_key, to_value = torch.split(weight, [config.qk_nope_head_dim, config.v_head_dim], dim=1)
        query = torch.cat([plain_query @ to_key, rotary_query], dim=-1)  # (B, H, T, R)
        gathered = attention(query, kept, kept[..., : config.kv_lora_rank], **arguments).output  # type: ignore[arg-type]
        return gathered @ to_value.mT
