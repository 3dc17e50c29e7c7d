"""Published architectures by name, each as its published config.json says and with its source."""

import difflib

from headwise.config.checks import require_text, shown
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.config.published.dense import DENSE
from headwise.config.published.encoders import ENCODERS
from headwise.config.published.llama import LLAMAS
from headwise.config.published.preset import Preset
from headwise.config.published.sparse import SPARSE
from headwise.errors import ConfigError

PRESETS: dict[str, Preset] = {**ENCODERS, **LLAMAS, **DENSE, **SPARSE}
"""Every published architecture, by name."""


def preset(name: str, *, head: bool = False) -> ModelConfig:
    """Return a published architecture.

    Args:
        name: a key of `PRESETS`.
        head: read a bare model as its family's language model, as `read_config` does.

    Raises:
        ConfigError: there is no such preset; the text names the nearest ones.
    """
    require_text("name of a preset", name)
    if name not in PRESETS:
        near = difflib.get_close_matches(name.lower()[:80], PRESETS, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no preset {shown(name)}; {advice}")
    return read_config(PRESETS[name].config, name=name, head=head)
