"""What a verb is about: MODEL as the command line spells it, or a config or module in hand."""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from headwise.config.model import ModelConfig
from headwise.config.vision_model import ImageConfig
from headwise.cost.parameters import count_parameters
from headwise.errors import ModelError, TextError
from headwise.loading.config import FORMS, Location, load_config, load_content, locate, name_of
from headwise.loading.python import find_object

if TYPE_CHECKING:
    from headwise.loading.module import LoadedModule

WEIGHT_SUFFIXES = (".safetensors", ".bin")
MOST_WEIGHTS_PER_BYTE = 8  # no format stores a weight in less than one bit


def find_on_paper(model: Any, *, kinds: Collection[str], head: bool = False) -> tuple[ModelConfig, str] | None:
    """Return the config of a model and where it came from, if it is one of these kinds of location or a ModelConfig.

    Args:
        model: MODEL.
        kinds: of location.
        head: read a bare model as its family's language model; a ModelConfig in hand has the head it has.

    Raises:
        HeadwiseError: MODEL cannot be found, or its config cannot be read.
    """
    if isinstance(model, ModelConfig):
        return model, "a config in hand"
    location = _locate(model)
    return (load_config(location, head=head), location.text) if location and location.kind in kinds else None


def find_images(model: Any) -> tuple[ImageConfig, str, str] | None:
    """Return the config of a module of images, its name and where it came from, if MODEL is such a config itself.

    Raises:
        HeadwiseError: MODEL cannot be found.
    """
    if isinstance(model, ImageConfig):
        return model, type(model).__name__.removesuffix("Config"), "a config in hand"
    location = _locate(model)
    if location is None or location.kind != "python":
        return None
    value = find_object(location.text)
    return (value, location.text.partition(":")[2], location.text) if isinstance(value, ImageConfig) else None


def find_content(model: Any) -> Mapping[str, Any] | None:
    """Return what the config.json of a model says, in Hugging Face's spelling; None where MODEL is no such file.

    Raises:
        HeadwiseError: MODEL cannot be found or read.
    """
    location = _locate(model)
    return load_content(location) if location and location.kind in ("preset", "config", "checkpoint") else None


def find_name(model: Any) -> str:
    """Return what to call a model that is a preset, a config.json or a checkpoint folder."""
    location = _locate(model)
    assert location is not None
    return name_of(location)


def require_weights(model: Any, *, what: str) -> None:
    """Refuse a model that is a preset or a config.

    Args:
        model: MODEL; None = the sample checkpoint.
        what: is done with it, as the error says: "heads are shown".

    Raises:
        HeadwiseError: it has no weights, or cannot be found.
    """
    paper = find_on_paper(model, kinds=("preset", "config")) if model is not None else None
    if paper is not None:
        raise ModelError(f"{what} of a model with weights, and {paper[0].name} has none: give a checkpoint")


def require_tokenizer(loaded: "LoadedModule") -> None:
    """Refuse a text where nothing reads it.

    Raises:
        TextError: the model has no tokenizer.
    """
    if loaded.tokenizer is None:
        raise TextError(f"a text needs a tokenizer, and {loaded.name} comes without one; leave the text out")


def load(model: Any, tokenizer: Any | None = None, *, aside: bool = True) -> "tuple[LoadedModule, str]":
    """Load a model, and tell where it came from; None = the sample checkpoint.

    Args:
        model: MODEL.
        tokenizer: of a module in hand.
        aside: whether a module in hand, or one that is imported, is copied to be run, as of `from_module`.

    Raises:
        HeadwiseError: MODEL cannot be found, read or built.
    """
    from torch import nn

    from headwise.loading.module import SAMPLE_PACKAGE, from_module, load_module, load_sample

    if model is None:
        return load_sample(), f"package {SAMPLE_PACKAGE}"
    location = _locate(model)
    if location is not None:
        if location.kind == "checkpoint":
            _require_weights_to_match_config(location)
        return load_module(location, aside=aside), location.text
    if isinstance(model, nn.Module):
        return from_module(model, tokenizer=tokenizer, aside=aside), "a module in hand"
    raise ModelError(f"MODEL must be {FORMS}, a ModelConfig or an nn.Module; got {type(model).__name__}")


def _require_weights_to_match_config(location: Location) -> None:
    """Raise ModelError, before memory is taken, if a config asks for more weights than its files can hold."""
    from headwise.loading.module import load_checkpoint_config

    config, _ = load_checkpoint_config(location)
    if config is None:  # a model of images of a family whose weights cannot be counted on paper
        return
    needed = count_parameters(config).total
    held_bytes = sum(path.stat().st_size for path in location.path.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    if needed > MOST_WEIGHTS_PER_BYTE * held_bytes:
        raise ModelError(
            f"a checkpoint must hold its weights; {location.path}'s config.json describes {needed:,} of them, "
            f"and its files have {held_bytes:,} bytes"
        )


def _locate(model: Any) -> Location | None:
    return locate(os.fspath(model)) if isinstance(model, str | os.PathLike) else None
