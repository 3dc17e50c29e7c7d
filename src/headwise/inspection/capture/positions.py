"""How far the positions of a model go."""

from typing import Any


def turns_positions(model: Any) -> bool:
    """Tell whether a Hugging Face model has rotary positions, which go on beyond its length, and no table of others."""
    parts = dict(model.named_modules())
    tables = [name for name, part in parts.items() if hasattr(part, "num_embeddings")]
    has_rotary = any("rotary" in type(part).__name__.lower() for part in parts.values())
    return has_rotary and not any("pos" in name or "wpe" in name for name in tables)
