"""Caches in files: what is held, as safetensors, with the kind of each cache and its settings in the header."""

import copy
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headwise.caches.base import Held, KVCache
from headwise.caches.rows import longest_of
from headwise.config.checks import MAX_SHOWN, MAX_SIZE, shown
from headwise.errors import ConfigError, OutputError
from headwise.files import whole_file

FORMAT = "headwise.caches 1"
_DTYPES = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}


class _Saved(NamedTuple):
    """One cache as the header describes it.

    Attributes:
        kind: `KVCache.kind`.
        settings: `KVCache.settings`.
        lengths: of the rows' streams.
        heads: heads, their size and dtype, of the keys and of the values that the cache shows.
    """

    kind: str
    settings: dict[str, Any]
    lengths: tuple[int, ...]
    heads: tuple[tuple[int, int, str], ...]


def save_caches(caches: Sequence[KVCache], path: str | os.PathLike[str]) -> Path:
    """Write what the caches of a model's layers hold to one file, whole or not at all.

    Args:
        caches: in the order of the layers, all in use, with as many rows.
        path: of the file, which is replaced; a link is followed.

    Raises:
        ConfigError: a cache that has had no update, that has other rows than the first, whose keys and values are not
            of one dtype, or not of float64, float32, bfloat16 or float16.
        OutputError: the file cannot be written: its folder is missing, the path is a folder or a device.
    """
    path = Path(path)
    described = [_describe(cache) for cache in caches]
    _require_one_batch(described)
    for one in described:
        dtypes = [dtype for _, _, dtype in one.heads]
        if dtypes[0] not in _DTYPES or dtypes[0] != dtypes[1]:
            raise ConfigError(
                f"keys and values must be of one dtype to be saved, {' or '.join(_DTYPES)}; got {' and '.join(dtypes)}"
            )
    tensors: dict[str, Tensor] = {}
    for number, cache in enumerate(caches):
        held = cache._hold()._asdict()
        tensors |= {f"{number}.{name}": tensor.contiguous() for name, tensor in held.items() if tensor is not None}
    header = {"format": FORMAT, "caches": json.dumps([one._asdict() for one in described])}
    with whole_file(path) as beside:
        try:
            save_file(tensors, beside, metadata=header)
        except SafetensorError as error:
            raise OutputError(f"cannot write {str(path)!r}: {error}") from error
    return path


def load_caches(caches: Sequence[KVCache], path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> None:
    """Make caches hold what was saved; whatever they held is forgotten, unless this raises.

    Rows that shared blocks of a `PagedCache` share them again.

    Args:
        caches: as many as were saved, of the same kinds, built with the same settings.
        path: a file of `save_caches`.
        device: where the tensors are to be.

    Raises:
        ConfigError: the file cannot be read, is no file of caches, is cut, or is of other caches; the machine has no
            such device. All caches are then as they were.
    """
    path = Path(path)
    _require_device(device)
    read = _read(path, caches, str(device))
    loaded = [_loaded(path, cache, *one) for cache, one in zip(caches, read, strict=True)]
    for cache, new in zip(caches, loaded, strict=True):
        _become(cache, new)


def _read(path: Path, caches: Sequence[KVCache], device: str) -> Iterator[tuple[_Saved, Held]]:
    """Check the header of a file, and read one cache after the other."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ConfigError(f"{path} must be a file of caches that headwise saved; got another")
            saved = _read_header(path, json.loads(header["caches"]))
            _require_kinds(path, caches, saved)
            names = set(file.keys())
            for number, one in enumerate(saved):
                needed = {name: file.get_tensor(f"{number}.{name}") for name in ("keys", "values", "key_index")}
                others: dict[str, Any] = {
                    name: file.get_tensor(f"{number}.{name}") if f"{number}.{name}" in names else None
                    for name in ("positions", "blocks")
                }
                yield one, Held(**needed, **others)
    except ConfigError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as a file of caches: {error or type(error).__name__}") from error


def _read_header(path: Path, described: Any) -> list[_Saved]:
    """Return what the header says of each cache, where it says all that it must and no more."""
    if isinstance(described, list) and all(map(_is_sound_description, described)):
        saved = [
            _Saved(one["kind"], one["settings"], tuple(one["lengths"]), tuple(map(tuple, one["heads"])))
            for one in described
        ]
        _require_one_batch(saved, f"{path}: ")
        return saved
    raise ConfigError(f"{path} must describe its caches in its header; got {shown(described)} (it has been changed)")


def _is_sound_description(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and one.keys() == set(_Saved._fields)
        and isinstance(one["kind"], str)
        and isinstance(one["settings"], dict)
        and isinstance(one["lengths"], list)
        and all(map(_is_size, one["lengths"]))
        and isinstance(one["heads"], list)
        and len(one["heads"]) == 2
        and all(map(_is_sound_heads, one["heads"]))
    )


def _is_sound_heads(heads: Any) -> bool:
    return isinstance(heads, list) and len(heads) == 3 and all(map(_is_size, heads[:2])) and heads[2] in list(_DTYPES)


def _is_size(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_SIZE


def _require_one_batch(saved: Sequence[_Saved], where: str = "") -> None:
    batches = [len(one.lengths) for one in saved]
    if len(set(batches)) > 1:
        raise ConfigError(f"{where}the caches of a model's layers must have as many rows each; got {batches}")


def _require_kinds(path: Path, caches: Sequence[KVCache], saved: Sequence[_Saved]) -> None:
    if len(saved) != len(caches):
        raise ConfigError(f"{path} must hold {len(caches)} caches, one a layer; got {len(saved)}")
    for number, (cache, one) in enumerate(zip(caches, saved, strict=True)):
        if (one.kind, one.settings) != (cache.kind, cache.settings):
            raise ConfigError(
                f"{path} must hold a {_words(cache.kind, cache.settings)} for layer {number}; got a "
                f"{_words(one.kind, one.settings)!r:.{MAX_SHOWN}}"
            )


def _require_device(device: torch.device | str) -> None:
    try:
        torch.empty(1, device=device).cpu()  # not from "meta", which holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch's words for one that is not there
        raise ConfigError(f"device must be one of this machine that holds numbers; got {str(device)!r}") from error


def _loaded(path: Path, cache: KVCache, saved: _Saved, held: Held) -> KVCache:
    """Return a cache built like another that holds what a file says, where that is what a cache can hold."""
    changed = ConfigError(f"{path} must hold tensors that fit together; got others (it has been changed)")
    if not _have_sound_shapes(held, saved, has_all=cache.window_size is None):
        raise changed
    new = _built_like(cache)
    try:
        new._restore(held, saved.lengths, _DTYPES[saved.heads[0][2]])
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be loaded: {error}") from error
    # Whatever else can be wrong with a file, it is not what is saved of the cache that was made of it.
    if _describe(new) != saved or not all(map(_are_equal, new._hold(), held)):
        raise changed
    return new


def _have_sound_shapes(held: Held, saved: _Saved, *, has_all: bool) -> bool:
    """Tell whether tensors have the ranks, sizes and dtypes that a cache, of all tokens or the last, can be made of."""
    if not held.keys.ndim == held.values.ndim == 4:
        return False
    batch, num_slots = held.keys.shape[0], held.keys.shape[2]
    index = held.key_index
    return (
        held.keys.shape[:3] == held.values.shape[:3]
        and batch == len(saved.lengths) > 0
        and all(
            one is None or (one.dtype == torch.int64 and one.ndim == 2 and one.shape[0] == batch) for one in held[2:]
        )
        and index.shape[1] == num_slots
        and (not has_all or num_slots == longest_of(saved.lengths))
        and bool((index < torch.tensor(saved.lengths, device=index.device).unsqueeze(1)).all())
    )


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Tell whether two tensors are the same to the bit, NaN too."""
    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _built_like(cache: KVCache) -> KVCache:
    """Return a cache of the same kind and settings, to be restored: nothing of the first is copied or changed."""
    new = copy.copy(cache)
    for name, value in vars(cache).items():
        if isinstance(value, KVCache):
            setattr(new, name, _built_like(value))
    return new


def _become(cache: KVCache, new: KVCache) -> None:
    """Make a cache what another is, and what is inside it what is inside the other."""
    for name, value in vars(new).items():
        if isinstance(value, KVCache):
            _become(getattr(cache, name), value)
        else:
            setattr(cache, name, value)


def _describe(cache: KVCache) -> _Saved:
    """Describe a cache that is in use, as a header does."""
    cache._require_use()
    assert cache._like is not None
    heads = tuple((one.shape[1], one.shape[3], str(one.dtype)) for one in cache._like)
    return _Saved(cache.kind, cache.settings, cache.lengths, heads)


def _words(kind: str, settings: dict[str, Any]) -> str:
    return f"{kind}({', '.join(f'{name}={value}' for name, value in settings.items())})"
