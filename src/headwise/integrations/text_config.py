"""What a Hugging Face config says of the part that reads text."""

from typing import Any


def text_config_of(config: Any) -> Any:
    """Return the part of a config that is of text; the config itself where it has none, or several (MusicGen)."""
    get_text_config = getattr(config, "get_text_config", None)
    if get_text_config is None:
        return config
    try:
        return get_text_config()
    except ValueError:  # several, and no way to tell which
        return config
