"""Caches in files: what is held, as safetensors, with the kind of each cache and its settings in the header."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headwise.caches.base import Held, KVCache
from headwise.errors import ConfigError, OutputError

FORMAT = "headwise.caches 1"
_DTYPES = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}


def save_caches(caches: Sequence[KVCache], path: str | os.PathLike[str]) -> Path:
    """Write what the caches of a model's layers hold to one file, whole or not at all.

    Args:
        caches: in the order of the layers, all in use.
        path: of the file, which is replaced.

    Raises:
        ConfigError: a cache that has had no update.
        OutputError: the file cannot be written.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    described = []
    for number, cache in enumerate(caches):
        cache._require_use()
        held = cache._hold()
        tensors |= {
            f"{number}.{name}": tensor.contiguous() for name, tensor in held._asdict().items() if tensor is not None
        }
        described.append({**_describe(cache), "lengths": cache.lengths, "dtype": str(cache._dtype)})
    half_written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, half_written, metadata={"format": FORMAT, "caches": json.dumps(described)})
        half_written.replace(path)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"{path} cannot be written: {error}") from error
    finally:
        half_written.unlink(missing_ok=True)
    return path


def load_caches(caches: Sequence[KVCache], path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> None:
    """Make caches hold what was saved; whatever they held is forgotten, unless this raises.

    Args:
        caches: as many as were saved, of the same kinds, built with the same settings.
        path: a file of `save_caches`.
        device: where the tensors are to be.

    Raises:
        ConfigError: the file cannot be read, is no file of caches, is cut, or is of other caches. All caches are then
            as they were.
    """
    held = _read(Path(path), caches, str(device))
    for cache, (one, lengths, dtype) in zip(caches, held, strict=True):
        cache._restore(one, lengths, dtype)


def _read(path: Path, caches: Sequence[KVCache], device: str) -> list[tuple[Held, tuple[int, ...], torch.dtype]]:
    """Read and check a whole file."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ConfigError(f"{path} must be a file of caches that headwise saved; got another")
            described = json.loads(header["caches"])
            _require_kinds(path, caches, described)
            names = set(file.keys())
            read = []
            for number, kind in enumerate(described):
                tensors = {name: file.get_tensor(f"{number}.{name}") for name in ("keys", "values", "key_index")}
                has_positions = f"{number}.positions" in names
                positions = file.get_tensor(f"{number}.positions") if has_positions else None
                read.append((Held(**tensors, positions=positions), tuple(kind["lengths"]), _DTYPES[kind["dtype"]]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read as a file of caches: {error or type(error).__name__}") from error
    for held, lengths, _ in read:
        _require_sound(path, held, lengths)
    return read


def _require_kinds(path: Path, caches: Sequence[KVCache], described: list[dict[str, Any]]) -> None:
    if len(described) != len(caches):
        raise ConfigError(f"{path} must hold {len(caches)} caches, one a layer; got {len(described)}")
    for number, (cache, kind) in enumerate(zip(caches, described, strict=True)):
        saved = {"kind": kind["kind"], "settings": kind["settings"]}
        if saved != _describe(cache):
            raise ConfigError(
                f"{path} must hold a {_words(_describe(cache))} for layer {number}; got a {_words(saved)}"
            )


def _require_sound(path: Path, held: Held, lengths: tuple[int, ...]) -> None:
    """Refuse tensors that contradict each other, or the lengths of the header."""
    batch, _, num_slots, _ = held.keys.shape if held.keys.ndim == 4 else (0, 0, 0, 0)
    index = held.key_index
    is_sound = (
        (held.keys.ndim == held.values.ndim == 4)
        and held.keys.shape[:3] == held.values.shape[:3]
        and index.shape == (batch, num_slots)
        and index.dtype == torch.int64
        and (held.positions is None or held.positions.shape == index.shape)
        and len(lengths) == batch
        and all(isinstance(length, int) and not isinstance(length, bool) and length >= 0 for length in lengths)
        and bool((index < torch.tensor(lengths, device=index.device).unsqueeze(1)).all() and (index >= -1).all())
    )
    if not is_sound:
        raise ConfigError(f"{path} must hold tensors that fit together; got others (it has been changed)")


def _describe(cache: KVCache) -> dict[str, Any]:
    return {"kind": cache.kind, "settings": cache.settings}


def _words(described: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in described["settings"].items())
    return f"{described['kind']}({settings})"
