"""The folder of a comparison: what it holds runs of, and the result once they are done."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import OutputError
from headwise.experiments.results import ComparisonResult
from headwise.files import output_errors, whole_file
from headwise.results import Result

COMPARISON = "comparison.json"


def open_folder(folder: Path, name: str, identity: Mapping[str, Any], *, goes_on: bool = True) -> None:
    """Make the folder of a comparison, or see that it is the one of this comparison.

    Args:
        folder: where runs are kept.
        name: of the comparison.
        identity: what its runs depend on, as JSON can hold it.
        goes_on: whether runs that are there may go on.

    Raises:
        OutputError: it cannot be written, holds other files or another comparison, or `goes_on` is False and runs are
            there.
    """
    place = folder / COMPARISON
    if place.exists():
        found = _read(place)
        if found.get("identity") != json.loads(json.dumps(identity)):
            raise OutputError(
                f"{str(folder)!r} holds runs of another comparison, or of {name} with other settings; name another "
                "folder, or remove this one"
            )
        if not goes_on:
            state = "all of them done" if found.get("result") else "some of them not done"
            raise OutputError(
                f"{str(folder)!r} holds runs of this comparison already, {state}; go on with them by --resume "
                "(resume=True in Python), or name another folder"
            )
        return
    make_folder(folder)
    _write(place, {"name": name, "identity": dict(identity), "result": None})


def make_folder(folder: Path) -> None:
    """Make a folder that is to hold a comparison; one that is there must be empty.

    Raises:
        OutputError: it cannot be made, or holds other files.
    """
    with output_errors(folder):
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(
                f"{str(folder)!r} holds other files; name a folder that is new or empty, or one of this comparison"
            )
        folder.mkdir(parents=True, exist_ok=True)


def keep_result(folder: Path, name: str, identity: Mapping[str, Any], result: ComparisonResult) -> None:
    """Write the result of a comparison into its folder.

    Raises:
        OutputError: it cannot be written.
    """
    _write(folder / COMPARISON, {"name": name, "identity": dict(identity), "result": result.to_dict()})


def kept_result(folder: Path) -> ComparisonResult | None:
    """Return the result that the folder of a comparison holds already; None: it holds none that can be read."""
    try:
        return read_result(folder)
    except OutputError:
        return None


def read_result(folder: Path) -> ComparisonResult:
    """Return the result that a folder holds.

    Raises:
        OutputError: it holds none, or its runs are not done.
    """
    place = folder / COMPARISON
    if not place.is_file():
        raise OutputError(f"{str(folder)!r} must be the folder of a comparison, with a {COMPARISON}; there is none")
    content = _read(place)
    if not content.get("result"):
        raise OutputError(
            f"{str(folder)!r} holds runs of {content.get('name')} that are not all done; go on with them by the "
            "comparison's name, this folder and --resume"
        )
    try:
        result = _made(ComparisonResult, content["result"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise OutputError(f"{str(place)!r} must be as this version writes it; it is not: {error}") from error
    assert isinstance(result, ComparisonResult)
    return dataclasses.replace(result, folder=str(folder))


def _made(kind: Any, value: Any) -> Any:
    """Turn what JSON holds into a value of a type of a result's field."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if value is None or kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _made(next(one for one in inner if one is not type(None)), value)
    if origin is tuple:
        return tuple(_made(inner[0], each) for each in value)
    if origin is dict:
        return {key: _made(inner[1], each) for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, Result) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {field.name for field in dataclasses.fields(kind)}
        return kind(**{name: _made(hints[name], each) for name, each in value.items() if name in known})
    return float(value) if kind is float else value


def _read(place: Path) -> dict[str, Any]:
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            raise ValueError("a record has a name")
    except (OSError, ValueError) as error:
        raise OutputError(f"{str(place)!r} is no record of a comparison; name another folder, or remove it") from error
    return found


def _write(place: Path, content: Mapping[str, Any]) -> None:
    with whole_file(place) as beside:
        beside.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
