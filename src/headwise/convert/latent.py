"""DeepSeek's attention in transformers <-> LatentAttention."""

from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.huggingface import read_config
from headwise.config.latent import LatentAttentionConfig
from headwise.convert.plain import require_kind, require_one_dtype, require_plain
from headwise.convert.weights import copy_weights, fill, parameters_of, require_settings
from headwise.errors import UnsupportedError
from headwise.nn.latent import LatentAttention

FAMILIES = ("deepseek_v2", "deepseek_v3")
_NORM_KINDS = ("DeepseekV2RMSNorm", "DeepseekV3RMSNorm")
# transformers' module -> ours
_NAMES = {
    "kv_a_proj_with_mqa": "kv_down_proj",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up_proj",
    "o_proj": "out_proj",
    "q_proj": "q_proj",
    "q_a_proj": "q_proj.0",
    "q_a_layernorm": "q_proj.1",
    "q_b_proj": "q_proj.2",
}


def latent_from_huggingface(attention: nn.Module) -> LatentAttention:
    """Make the layer that computes what a latent attention layer of a Hugging Face model computes, with its weights.

    Args:
        attention: `model.layers[0].self_attn` of DeepSeek-V2 or V3.

    Returns:
        A layer in the module's mode (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: another family, or weights that are no plain ones: in several dtypes, quantised, offloaded,
            with an adapter, a weight norm or a parametrization.
        ConfigError: the model's config cannot be read.
    """
    config = _config_of(attention)
    weights = _views_of(attention)
    require_one_dtype(weights)
    with torch.random.fork_rng(devices=[]):  # what the layer draws at its start is thrown away
        layer = LatentAttention.from_config(config)
    layer = layer.to(weights["out_proj.weight"]).train(attention.training)
    fill(layer, weights, parameters_of(layer))
    return layer


def latent_to_huggingface(layer: LatentAttention, attention: nn.Module) -> None:
    """Write a layer's weights into a latent attention layer of a Hugging Face model, in place, in its own dtype.

    Args:
        layer: with the settings that `latent_from_huggingface(attention)` has.
        attention: as of `latent_from_huggingface`.

    Raises:
        UnsupportedError: as `latent_from_huggingface`, or the two have another setting, whose name is given. Nothing is
            written then.
        ConfigError: the model's config cannot be read.
    """
    require_kind("layer", layer, [LatentAttention], what="convert it")
    require_settings(layer.config, _config_of(attention), where=f"this {type(attention).__name__}")
    copy_weights(parameters_of(layer), _views_of(attention))


def _config_of(attention: Any) -> LatentAttentionConfig:
    config = getattr(attention, "config", None)
    family = getattr(config, "model_type", None)
    if config is None or family not in FAMILIES:
        raise UnsupportedError(
            f"a latent attention layer must be of one of {', '.join(FAMILIES)} to be converted; "
            f"got a {type(attention).__name__} of {family}"
        )
    settings = {key: value for key, value in config.to_dict().items() if key != "architectures"}
    # Attention is the same in every layer: a layer's number may be stale, where others were taken out.
    found = read_config(settings, name=type(attention).__name__).blocks[0].attention
    assert isinstance(found, LatentAttentionConfig), f"{family} has latent layers only"
    return found


def _views_of(attention: nn.Module) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the layer's weights under our names, as views."""
    views = {}
    for name, weight in parameters_of(attention).items():
        part, _, kind = name.rpartition(".")
        if part not in _NAMES:
            raise UnsupportedError(f"weights must be those of plain projections and norms to be converted; got {name}")
        require_plain(part, attention.get_submodule(part), [nn.Linear, *_NORM_KINDS], whole=attention)
        views[f"{_NAMES[part]}.{kind}"] = weight
    return views
