"""Preset: one published architecture."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A published architecture: what its config.json says, in Hugging Face's spelling, and where it was published."""

    config: Mapping[str, object]
    source: str
