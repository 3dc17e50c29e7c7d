"""GPT-NeoX's and Falcon's config.json: attention and feed-forward side by side on the same tokens.

Black et al. 2022 (GPT-NeoX), Almazrouei et al. 2023 (Falcon).
"""

from collections.abc import Mapping

from headwise.config.attention import ALiBi, AttentionConfig
from headwise.config.families.classes import read_top
from headwise.config.families.rotary import read_rotary
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig
from headwise.masks.patterns import Causal

DEFAULTS: dict[str, dict[str, object]] = {
    "gpt_neox": {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "classifier_dropout": 0.1,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "use_parallel_residual": True,
        "attention_bias": True,
        "rope_parameters": None,
        "rope_scaling": None,
        "rotary_emb_base": 10_000.0,
        "rotary_pct": 0.25,
    },
    "falcon": {
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "num_kv_heads": None,
        "num_ln_in_parallel_attn": None,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "max_position_embeddings": 2048,
        "ffn_hidden_size": None,
        "activation": "gelu",
        "rope_parameters": None,
        "rope_scaling": None,
        "rope_theta": 10_000.0,
    },
}


def read_gpt_neox(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "gpt_neox"; see `read_config`."""
    keys = Keys(config, DEFAULTS["gpt_neox"])
    embed_dim, num_heads = _read_shape(keys)
    attention = AttentionConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        projection_bias=keys.flag("attention_bias"),
        position=read_rotary(
            keys, head_dim=embed_dim // num_heads, theta_key="rotary_emb_base", partial_key="rotary_pct"
        ),
        mask=Causal(),
        dropout_p=keys.probability("attention_dropout"),
    )
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            embed_dim=embed_dim, hidden_dim=keys.size("intermediate_size"), activation=keys.text("hidden_act")
        ),
        norm_eps=keys.positive("layer_norm_eps"),
        dropout_p=keys.probability("hidden_dropout"),
        parallel=keys.flag("use_parallel_residual"),
    )
    dropout_p = keys.probability("classifier_dropout", null=0.1)
    return _model(config, keys, block, name=name, family="gpt_neox", head=head, classifier_dropout_p=dropout_p)


def read_falcon(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "falcon"; see `read_config`."""
    keys = Keys(config, DEFAULTS["falcon"], {"n_embed": "hidden_size"})
    embed_dim, num_heads = _read_shape(keys)
    has_bias = keys.flag("bias", null=False)
    is_new, is_parallel = (keys.flag(key, null=False) for key in ("new_decoder_architecture", "parallel_attn"))
    num_norms = keys.size_or_none("num_ln_in_parallel_attn") or (2 if is_new else 1)
    has_alibi = keys.flag("alibi", null=False)
    weights_dropout_p = keys.probability("attention_dropout", null=0.0)
    attention = AttentionConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=_read_falcon_kv_heads(keys, is_new=is_new, num_heads=num_heads),
        projection_bias=has_bias,
        position=ALiBi() if has_alibi else read_rotary(keys, head_dim=embed_dim // num_heads),
        mask=Causal(),
        dropout_p=weights_dropout_p if has_alibi else 0.0,  # beside rotary positions, no weight is dropped there
    )
    dropout_p = keys.probability("hidden_dropout", null=0.0)
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            embed_dim=embed_dim,
            hidden_dim=keys.size_or_none("ffn_hidden_size") or 4 * embed_dim,
            activation=keys.text("activation"),
            bias=has_bias,
        ),
        norm_eps=keys.positive("layer_norm_epsilon"),
        dropout_p=dropout_p,
        parallel=is_parallel,
        shared_norm=is_parallel and num_norms != 2,
    )
    return _model(config, keys, block, name=name, family="falcon", head=head, classifier_dropout_p=dropout_p)


def _read_falcon_kv_heads(keys: Keys, *, is_new: bool, num_heads: int) -> int:
    if is_new:
        if keys.size_or_none("num_kv_heads") is None:
            return num_heads
        keys.require_multiple("num_attention_heads", "num_kv_heads")
        return keys.size("num_kv_heads")
    return 1 if keys.flag("multi_query", null=False) else num_heads


def _read_shape(keys: Keys) -> tuple[int, int]:
    keys.require_multiple("hidden_size", "num_attention_heads")
    # four times the width is the default of the feed-forward's, and must be a size too
    return keys.size("hidden_size", maximum=2**29), keys.size("num_attention_heads")


def _model(
    config: Mapping[str, object],
    keys: Keys,
    block: BlockConfig,
    *,
    name: str,
    family: str,
    head: bool,
    classifier_dropout_p: float,
) -> ModelConfig:
    vocab_size = keys.size("vocab_size")
    top = read_top(
        config, family, vocab_size=vocab_size, with_language_model=head, hidden_dropout_p=classifier_dropout_p
    )
    return ModelConfig(
        name=name,
        model_type=family,
        kind="decoder",
        embed_dim=block.attention.embed_dim,
        vocab_size=vocab_size,
        max_positions=keys.size("max_position_embeddings"),
        embedding_dropout_p=block.dropout_p if family == "gpt_neox" else 0.0,
        blocks=(block,) * keys.size("num_hidden_layers", maximum=MAX_LAYERS),
        final_norm=True,
        head=top.head,
        dtype=read_dtype(config),
    )
