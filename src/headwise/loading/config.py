"""MODEL as the user wrote it, as far as paper goes: find it and read its config, without torch."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwise.config.checks import shown
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.config.presets import PRESETS, preset
from headwise.errors import ConfigError, ModelError
from headwise.loading.files import read_whole

MAX_CONFIG_BYTES = 16 * 2**20  # published config.json files are a few KiB

FORMS = (
    "a preset name (bert-base, llama-3-8b, ...), a config.json, a Hugging Face checkpoint folder, a .gguf file, "
    "package.module:name, or file.py:name"
)


@dataclass(frozen=True)
class Location:
    """Where a MODEL is: its form, and the path, preset name, `package.module:name` or `file.py:name`."""

    kind: Literal["preset", "config", "checkpoint", "gguf", "python"]
    text: str

    @property
    def path(self) -> Path:
        """The file or folder, for the forms that are one."""
        return Path(self.text)


def locate(model: str) -> Location:
    """Tell which form of MODEL this is; a preset's name wins over a folder of that name (write `./name` for it).

    Raises:
        ModelError: it is none of the forms, or the file or folder is not there.
    """
    if not model or "\0" in model:
        raise ModelError(f"MODEL must be {FORMS}; got {model!r}")
    if model in PRESETS:
        return Location("preset", model)
    path = Path(model)
    module, colon, name = model.partition(":")
    if colon and all(part.isidentifier() for part in name.split(".")):
        if all(part.isidentifier() for part in module.split(".")):
            return Location("python", model)
        if module.endswith(".py") and _is_file(module):
            return Location("python", model)
    try:
        if path.is_dir():
            if not os.path.lexists(path / "config.json"):
                raise ModelError(f"a checkpoint folder must hold a config.json; {model} has none")
            return Location("checkpoint", model)
        if path.is_file():
            if path.suffix == ".py":
                raise ModelError(
                    f"{model} is a Python file: write {model}:name, with the name of a module or of a function that "
                    "makes one"
                )
            return Location("gguf" if path.suffix == ".gguf" else "config", model)
        if os.path.lexists(path):
            raise ModelError(f"MODEL {model!r} must be a file or a folder; it is a device, a pipe or a broken link")
    except OSError as error:
        raise ModelError(f"MODEL {model!r} cannot be looked up: {error.strerror or error}") from None
    if path.suffix in (".json", ".gguf") or path.parent != Path():
        raise ModelError(f"MODEL {model!r} is no file or folder here; MODEL must be {FORMS}")
    near = difflib.get_close_matches(model.lower(), PRESETS, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"MODEL must be {FORMS}"
    raise ModelError(f"MODEL {model!r} is neither a preset nor a file or folder here; {hint}")


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a name that no file can have
        return False


def load_config(location: Location, *, head: bool = False) -> ModelConfig:
    """Read the config of a preset, a config.json or a checkpoint folder.

    Args:
        location: where it is.
        head: read a bare model as its family's language model.

    Raises:
        ConfigError: the config is malformed, contradictory or of a family that cannot be read.
        ModelError: the file cannot be read as JSON.
    """
    if location.kind == "preset":
        return preset(location.text, head=head)
    return read_config(_read(location), name=name_of(location), head=head)


def load_content(location: Location) -> Mapping[str, Any]:
    """Read what the config.json of a preset, a file or a checkpoint folder says, in Hugging Face's spelling.

    Raises:
        ConfigError: it is no object.
        ModelError: the file cannot be read as JSON.
    """
    content = PRESETS[location.text].config if location.kind == "preset" else _read(location)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name_of(location)}: a config must be an object with keys; got {shown(content)}")
    return content


def name_of(location: Location) -> str:
    """Return what to call the model: its preset's name, its folder's, or its file's."""
    if location.kind == "preset":
        return location.text
    name = location.path.resolve().name
    if location.kind == "config":
        return location.path.resolve().parent.name if name == "config.json" else location.path.stem
    return name


def _read(location: Location) -> object:
    assert location.kind in ("config", "checkpoint")
    return read_json(location.path / "config.json" if location.kind == "checkpoint" else location.path)


def read_json(path: Path) -> object:
    """Read a JSON file of bounded size.

    Raises:
        ModelError: it cannot be opened, is too large, or is no JSON.
    """
    content = read_whole(path, what="a config", max_bytes=MAX_CONFIG_BYTES, error=ModelError)
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ModelError(f"{path} must be JSON in UTF-8; it holds other bytes") from None
    except (json.JSONDecodeError, RecursionError) as error:
        detail = f"{error.msg} at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "nested too deep"
        raise ModelError(f"{path} must be JSON, and is not ({detail}); was it cut short?") from None
    except ValueError:
        raise ModelError(f"{path} holds a number that no config has: one of thousands of digits") from None
