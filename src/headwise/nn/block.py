"""Block: attention and a feed-forward network, each with a norm and a residual connection."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as run_under_checkpoint

from headwise.caches.base import KVCache
from headwise.config.attention import AttentionConfig
from headwise.config.checks import require_choice, require_instance
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.errors import UnsupportedError
from headwise.masks.patterns import Mask
from headwise.nn.checks import explain_refusal, require_tokens
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.projection import project

# By the names of Hugging Face's configs; "gelu_new" and its relatives are GPT-2's approximation by tanh.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
}


class FeedForward(nn.Module):
    """The position-wise network of a block.

    Plain: `down_proj(activation(up_proj(x)))`. Gated: `down_proj(activation(gate_proj(x)) * up_proj(x))`. In training,
    dropout acts on what goes into `down_proj`.

    Args:
        config: widths, activation, whether gated, whether with biases.

    Raises:
        UnsupportedError: a mixture of experts, or an unknown activation.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.3; gated: Shazeer 2020, "GLU Variants Improve
    Transformer", equation 6.
    """

    def __init__(self, config: FeedForwardConfig):
        super().__init__()
        require_instance("config", config, FeedForwardConfig)
        if config.num_experts > 1:
            raise UnsupportedError(
                f"a feed-forward must have one expert to be built here; got num_experts {config.num_experts}; "
                "run a mixture of experts through transformers"
            )
        if config.activation not in ACTIVATIONS:
            raise UnsupportedError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {config.activation!r}")
        self.config = config
        self.gate_proj = nn.Linear(config.embed_dim, config.hidden_dim, bias=config.bias) if config.gated else None
        self.up_proj = nn.Linear(config.embed_dim, config.hidden_dim, bias=config.bias)
        self.down_proj = nn.Linear(config.hidden_dim, config.embed_dim, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout_p)

    def forward(self, tokens: Float[Tensor, "batch seq_len embed_dim"]) -> Float[Tensor, "batch seq_len embed_dim"]:
        """Apply the network to every token by itself."""
        activation = ACTIVATIONS[self.config.activation]
        hidden = project(self.up_proj, tokens)
        hidden = activation(hidden) if self.gate_proj is None else activation(project(self.gate_proj, tokens)) * hidden
        return project(self.down_proj, self.dropout(hidden) if self.dropout.p > 0 else hidden)


class Block(nn.Module):
    """One Transformer block.

    By the config's `norm_placement`, for f the attention and then the feed-forward, each with norms of its own:

    - "pre": `x = x + f(norm(x))`
    - "post": `x = norm(x + f(x))`
    - "both": `x = x + output_norm(f(norm(x)))`, as Gemma 2 does
    - "output": `x = x + output_norm(f(x))`, as OLMo 2 does

    Parallel: `x = x + attention(norm(x)) + feed_forward(norm(x))`, by two norms or by one. In training, dropout acts on
    what is added to `x`.

    Args:
        config: the attention, the feed-forward, the norm and its place.
        checkpoint: what is computed again in backward instead of kept: "none"; "selective": what stands between
            queries, keys, values and the attention's output; "full": the block, of which only the input is kept.
        fused_qkv: one projection gives queries, keys and values.
        impl: which implementation computes the attention.

    Raises:
        ConfigError: another description than a `BlockConfig`, another `checkpoint`.
        UnsupportedError: what `MultiHeadAttention` and `FeedForward` cannot build.

    Source: post-norm: Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020, "On Layer Normalization in the
    Transformer Architecture", section 3; both: Gemma Team 2024, "Gemma 2", section 2; output: OLMo Team 2024, "2 OLMo 2
    Furious", section 2; parallel: Wang and Komatsuzaki 2021, "GPT-J-6B"; RMSNorm: Zhang and Sennrich 2019; checkpoints:
    Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5.
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        checkpoint: Literal["none", "selective", "full"] = "none",
        fused_qkv: bool = False,
        impl: str = "auto",
    ):
        super().__init__()
        require_instance("config", config, BlockConfig)
        require_choice("checkpoint", checkpoint, ("none", "selective", "full"))
        self.config, self.checkpoint = config, checkpoint
        attention = _require_built_here(config)
        self.attention = MultiHeadAttention.from_config(attention, fused_qkv=fused_qkv, impl=impl)
        self.attention.recomputes = checkpoint == "selective"
        has_norms, has_output_norms = config.norm_placement != "output", config.norm_placement in ("both", "output")
        self.attention_norm = _make_norm(config) if has_norms else nn.Identity()
        self.attention_output_norm = _make_norm(config) if has_output_norms else nn.Identity()
        self.feed_forward = FeedForward(config.feed_forward)
        is_shared = config.shared_norm or not has_norms
        self.feed_forward_norm = self.attention_norm if is_shared else _make_norm(config)
        self.feed_forward_output_norm = _make_norm(config) if has_output_norms else nn.Identity()
        self.dropout = nn.Dropout(config.dropout_p)

    def forward(
        self,
        tokens: Float[Tensor, "batch seq_len embed_dim"],
        *,
        mask: Mask | None = None,
        positions: Int[Tensor, "batch seq_len"] | Int[Tensor, " seq_len"] | None = None,
        cache: KVCache | None = None,
        real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    ) -> Float[Tensor, "batch seq_len embed_dim"]:
        """Let the tokens look at each other, then think by themselves.

        Args:
            tokens: (batch, seq_len, embed_dim).
            mask: which keys a query may read, beyond what the attention's own mask allows.
            positions: (seq_len,) or (batch, seq_len), for an attention with positions.
            cache, real_tokens: of the attention, as of `MultiHeadAttention`.

        Raises:
            ConfigError, UnsupportedError: as `MultiHeadAttention`.
        """
        require_tokens("tokens", tokens, "embed_dim", self.config.attention.embed_dim)
        attend = partial(self.attention, mask=mask, positions=positions, cache=cache, real_tokens=real_tokens)
        run = partial(self._run, attend=attend)
        try:
            if self.checkpoint == "full" and torch.is_grad_enabled():
                return run_under_checkpoint(run, tokens, use_reentrant=False)  # type: ignore[no-any-return]
            return run(tokens)
        except RuntimeError:
            explain_refusal(self, tokens=tokens)
            raise

    def _run(self, tokens: Tensor, *, attend: Callable[[Tensor], Tensor]) -> Tensor:
        feed_forward = self.feed_forward
        dropout = self.dropout if self.dropout.p > 0 else _same
        if self.config.norm_placement == "post":
            seen = attend(tokens)
            tokens = self.attention_norm(tokens + dropout(seen))
            return self.feed_forward_norm(tokens + dropout(feed_forward(tokens)))  # type: ignore[no-any-return]
        seen = attend(self.attention_norm(tokens))
        seen = self.attention_output_norm(seen)
        if self.config.parallel:
            return tokens + dropout(seen) + dropout(feed_forward(self.feed_forward_norm(tokens)))
        tokens = tokens + dropout(seen)
        thought = feed_forward(self.feed_forward_norm(tokens))
        return tokens + dropout(self.feed_forward_output_norm(thought))


def _same(tokens: Tensor) -> Tensor:
    """Return what is given: a dropout of 0, without the call of a module."""
    return tokens


def _require_built_here(config: BlockConfig) -> AttentionConfig:
    """Return the block's attention, or raise UnsupportedError where the block has a part that is not built here."""
    if not isinstance(config.attention, AttentionConfig):
        got = type(config.attention).__name__
    elif config.cross_attention is not None:
        got = "a cross_attention"
    else:
        return config.attention
    raise UnsupportedError(
        "a block must be one multi-head attention and one feed-forward to be built here; "
        f"got {got}; run the model through transformers"
    )


def _make_norm(config: BlockConfig) -> nn.Module:
    kind = nn.LayerNorm if config.norm == "layernorm" else nn.RMSNorm
    return kind(config.attention.embed_dim, eps=config.norm_eps)
