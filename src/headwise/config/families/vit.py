"""ViT's config.json: an encoder of image patches (Dosovitskiy et al. 2020)."""

from collections.abc import Mapping

from headwise.config.attention import AttentionConfig
from headwise.config.checks import require_size, shown
from headwise.config.families.classes import read_top
from headwise.config.keys import Keys, read_dtype
from headwise.config.model import MAX_LAYERS, BlockConfig, FeedForwardConfig, ModelConfig, PatchConfig
from headwise.errors import ConfigError, UnknownArchitectureError

DEFAULTS: dict[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "head_dim": None,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "pooler_output_size": None,
}

MAX_SIDE = 2**15  # pixels; the number of patches stays a size


def read_vit(config: Mapping[str, object], *, name: str, head: bool) -> ModelConfig:
    """Read a config.json whose model_type is "vit"; see `read_config`."""
    keys = Keys(config, DEFAULTS)
    _refuse_variants(keys)
    if keys.size_or_none("head_dim") is None:
        keys.require_multiple("hidden_size", "num_attention_heads")
    patches = _read_patches(config, keys)
    dropout_p = keys.probability("hidden_dropout_prob")
    block = BlockConfig(
        attention=AttentionConfig.from_keywords(
            embed_dim=keys.size("hidden_size"),
            num_heads=keys.size("num_attention_heads"),
            head_dim=keys.size_or_none("head_dim"),
            dropout_p=keys.probability("attention_probs_dropout_prob"),
        ),
        feed_forward=FeedForwardConfig(
            embed_dim=keys.size("hidden_size"),
            hidden_dim=keys.size("intermediate_size"),
            activation=keys.text("hidden_act"),
        ),
        norm_eps=keys.positive("layer_norm_eps"),
        dropout_p=dropout_p,
    )
    top = read_top(config, "vit", vocab_size=0, with_language_model=head)
    return ModelConfig(
        name=name,
        model_type="vit",
        kind="encoder",
        embed_dim=keys.size("hidden_size"),
        vocab_size=0,
        max_positions=patches.num_tokens,
        position_table_size=patches.num_tokens,
        embedding_dropout_p=dropout_p,
        blocks=(block,) * keys.size("num_hidden_layers", maximum=MAX_LAYERS),
        final_norm=True,
        pooler=top.pooler,
        head=top.head,
        dtype=read_dtype(config),
        patches=patches,
    )


def _refuse_variants(keys: Keys) -> None:
    if not keys.flag("qkv_bias"):
        raise ConfigError("queries, keys and values without biases cannot be read; got qkv_bias false")
    embed_dim = keys.size("hidden_size")
    if keys.size_or_none("pooler_output_size") not in (None, embed_dim):
        raise ConfigError(
            f"pooler_output_size must equal hidden_size; got {keys.size('pooler_output_size')} and {embed_dim}"
        )


def _read_patches(config: Mapping[str, object], keys: Keys) -> PatchConfig:
    image_size, patch_size = _read_side(config, "image_size"), _read_side(config, "patch_size")
    if patch_size > image_size:
        raise ConfigError(f"patch_size must not exceed image_size; got {patch_size} and {image_size}")
    return PatchConfig(image_size=image_size, patch_size=patch_size, num_channels=keys.size("num_channels"))


def _read_side(config: Mapping[str, object], key: str) -> int:
    """Read the side of a square, written as one number or as two equal ones."""
    value = config.get(key, DEFAULTS[key])
    sides = value if isinstance(value, list | tuple) and len(value) == 2 else [value, value]
    for side in sides:
        require_size(key, side, maximum=MAX_SIDE)
    if sides[0] != sides[1]:
        raise UnknownArchitectureError(f"{key} must be square, both sides equal; got {shown(value)}")
    assert isinstance(sides[0], int)
    return sides[0]
