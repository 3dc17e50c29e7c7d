"""build_module: the module that transformers makes of a config.json, without the weights of a checkpoint."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headwise.config.checks import MAX_SIZE, shown
from headwise.errors import ConfigError
from headwise.loading.libraries import import_transformers, one_line, quiet

# Settings that say how many modules there are: num_hidden_layers, n_layer, decoder_layers, num_local_experts, depths.
_COUNTS_MODULES = re.compile(r"(.*_)?(n|num|number)_.*(layer|block|expert|stage)s?|(.*_)?layers|depths?", re.IGNORECASE)
MAX_MODULES = 1024  # layers, experts or stages in a row: several times the most that was published
MAX_LABELS = 100_000  # transformers makes a name for each
_NOT_BUILT_FROM = ("_attn_implementation", "attn_implementation", "auto_map", "quantization_config")


def build_module(content: Mapping[str, Any], *, name: str, device: str = "meta") -> nn.Module:
    """Build the module that transformers makes of a config.json: on the meta device, shapes without weights.

    Its class is the first of the config's `architectures`; without any, the bare model of an encoder, and the language
    model of all others. Attention is eager, until `set_attn_implementation` says otherwise.
    Code that a config names is never run.

    Args:
        content: what the config.json says.
        name: what to call it in errors.
        device: where its weights are; on "cpu" they are random.

    Raises:
        ConfigError: the content is no config of a `model_type` that transformers knows, or asks for too much.
        ModelError: transformers cannot build the module.
        MissingExtraError: transformers is not installed.
    """
    transformers = import_transformers()
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise ConfigError(f"{name} must be a config with a model_type that transformers knows; got {shown(kind)}")
    _require_bounded(content, name)
    kept = {key: value for key, value in content.items() if key not in _NOT_BUILT_FROM}
    with quiet(transformers), one_line(f"the config {name}"), torch.device(device):
        config = transformers.CONFIG_MAPPING[kind].from_dict(kept)
        config._attn_implementation = "eager"
        return _class_of(transformers, config, content.get("architectures"), name)(config)  # type: ignore[no-any-return]


def default_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers takes where a config.json says nothing; empty for a family that it does not know."""
    transformers = import_transformers()
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        return {}
    defaults: dict[str, Any] = transformers.CONFIG_MAPPING[kind]().to_dict()
    return {key: value for key, value in defaults.items() if value is not None}


def _class_of(transformers: Any, config: Any, architectures: object, name: str) -> Any:
    """Return the class that `architectures` names, or the usual one where it names none.

    Raises:
        ConfigError: it is no list of names, or the first is no model of this kind of config.
    """
    if architectures is None or architectures == []:
        return _usual_class(transformers, config)
    first = architectures[0] if isinstance(architectures, list) else None
    named: Any = getattr(transformers, first, None) if isinstance(first, str) else None
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    # An abstract base of a family has the family's config too, but no forward pass of its own.
    if not is_model or named.config_class is not type(config) or named.__name__.endswith("PreTrainedModel"):
        raise ConfigError(
            f"{name}: architectures must name a class of transformers for model_type {config.model_type!r}, in a list; "
            f"got {shown(architectures)}"
        )
    return named


def _usual_class(transformers: Any, config: Any) -> Any:
    """Return the class that a config without `architectures` is read as: a language model unless it is an encoder."""
    kind = type(config)
    if getattr(config, "is_encoder_decoder", False):
        texts, speech = (
            transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
            transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        )
        return next((mapping[kind] for mapping in (texts, speech) if kind in mapping), transformers.MODEL_MAPPING[kind])
    language_models, encoders = transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_MASKED_LM_MAPPING
    is_decoder = kind in language_models and kind not in encoders
    return (language_models if is_decoder else transformers.MODEL_MAPPING)[kind]


def _require_bounded(config: Any, name: str) -> None:
    """Raise ConfigError for a whole number, at any depth, that no real model has."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, dict | list):
                waiting.append(item)
            elif isinstance(item, int) and not isinstance(item, bool):
                maximum = MAX_LABELS if key == "num_labels" else MAX_SIZE
                if _COUNTS_MODULES.fullmatch(str(key)):
                    maximum = MAX_MODULES
                if item > maximum or item < -MAX_SIZE:
                    raise ConfigError(f"{name}: {key} must be at most {maximum} to be built; got {shown(item)}")
