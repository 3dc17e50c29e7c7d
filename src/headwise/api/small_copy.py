"""A small model of the same build as a config's, with random weights, on this machine's CPU."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headwise.api.running import explained
from headwise.api.subject import find_content
from headwise.config.families.classes import CLASSES, class_of
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, ModelError, UnknownArchitectureError
from headwise.loading.build import build_module, default_content
from headwise.loading.scaled import scale_down

SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallCopy:
    """A scaled-down model; `config` is None where its family has no closed form of anything, and `notes` say so."""

    name: str
    content: Mapping[str, Any]
    config: ModelConfig | None
    module: nn.Module
    notes: tuple[str, ...]


def make_small_copy(
    model: Any,
    *,
    head: bool = False,
    resize: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = lambda content, small: small,
) -> SmallCopy:
    """Scale a model down and build it with random weights. The random state is left as it was.

    Args:
        model: a preset, a config.json or a checkpoint folder.
        head: a bare model becomes its family's language model.
        resize: from the model's config and the small one, the small one with other sizes.

    Raises:
        ModelError: MODEL is no config that can be scaled down.
        HeadwiseError: MODEL cannot be found or read, or its module cannot be built.
    """
    content = find_content(model)
    if content is None:
        raise ModelError(
            "a model is verified on a small one of the same config, so MODEL must be a preset, a config.json or a "
            "checkpoint folder"
        )
    name = os.fspath(model)
    if head:
        content = _with_head(content)
    small = resize(content, _scale_down(content))
    return build_copy(small, name)


def build_copy(content: Mapping[str, Any], name: str) -> SmallCopy:
    """Build a model of a small config with random weights. The random state is left as it was.

    Raises:
        HeadwiseError: its module cannot be built.
    """
    config, notes = _read(content, name)
    with torch.random.fork_rng(devices=()), explained(name):
        torch.manual_seed(SEED)
        module = build_module(content, name=name, device="cpu")
    return SmallCopy(name=name, content=content, config=config, module=module, notes=notes)


def _with_head(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name the language model of the family in place of its bare model, of a family that can be read."""
    family = content.get("model_type")
    if not isinstance(family, str) or family not in CLASSES or family == "vit":
        return content
    bare, language_model = CLASSES[family][:2]
    return {**content, "architectures": [language_model]} if class_of(content, family) == bare else content


def _scale_down(content: Mapping[str, Any]) -> dict[str, Any]:
    """Scale a config down; one that does not tell its sizes, with those that transformers takes by itself."""
    try:
        return scale_down(content)
    except ConfigError:
        return scale_down({**default_content(content), **content})


def _read(content: Mapping[str, Any], name: str) -> tuple[ModelConfig | None, tuple[str, ...]]:
    try:
        return read_config(content, name=name), ()
    except UnknownArchitectureError as error:
        return None, (f"There is no closed form: {error}.",)
