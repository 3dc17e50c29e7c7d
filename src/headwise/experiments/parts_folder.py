"""The folder of a question that is put to several tasks: a folder of runs for each, and which they are."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import OutputError
from headwise.experiments.comparison_folder import COMPARISON, make_folder, read_result
from headwise.experiments.results import ComparisonResult
from headwise.files import whole_file

PARTS = "parts.json"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a folder holds: the name of the question, the question, and the names of its parts in order."""

    name: str
    question: str
    parts: tuple[str, ...]


def open_parts(folder: Path, parts: Parts, *, goes_on: bool = True) -> None:
    """Make the folder of several comparisons, or see that it is the one of these.

    Raises:
        OutputError: it cannot be written, holds something else, or `goes_on` is False and runs are there.
    """
    place = folder / PARTS
    if place.exists():
        if _read(place) != parts:
            raise OutputError(
                f"{str(folder)!r} holds runs of another comparison than {parts.name}; name another folder, or remove "
                "this one"
            )
        if not goes_on:
            raise OutputError(
                f"{str(folder)!r} holds runs of this comparison already; go on with them by --resume (resume=True in "
                "Python), or name another folder"
            )
        return
    make_folder(folder)
    content = {"name": parts.name, "question": parts.question, "parts": list(parts.parts)}
    with whole_file(place) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_results(folder: Path) -> tuple[Parts, tuple[ComparisonResult, ...]]:
    """Return what a folder holds: the results of all parts, or the one of a folder without parts.

    Raises:
        OutputError: it holds none, or runs are not done.
    """
    place = folder / PARTS
    if not place.is_file():
        result = read_result(folder)
        return Parts(name=result.name, question=result.question, parts=(result.name,)), (result,)
    parts = _read(place)
    missing = [name for name in parts.parts if not (folder / name / COMPARISON).is_file()]
    if missing:
        raise OutputError(
            f"{str(folder)!r} holds runs of {parts.name} that are not all done, {missing[0]} not begun; go on with "
            "them by the comparison's name, this folder and --resume"
        )
    return parts, tuple(read_result(folder / name) for name in parts.parts)


def part_folders(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the folder of each part: one alone has the whole."""
    return [folder] if len(names) == 1 else [folder / name for name in names]


def _read(place: Path) -> Parts:
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        return Parts(name=found["name"], question=found["question"], parts=tuple(found["parts"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{str(place)!r} is no record of a comparison; name another folder, or remove it") from error
