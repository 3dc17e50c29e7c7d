"""A comparison as a TOML file: the task, the recipe, and arms that differ in a few numbers."""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from headwise.config.checks import shown
from headwise.errors import ConfigError
from headwise.experiments.asking import ModelDescription
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.classification import Classification
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.digits import Digits
from headwise.experiments.examples import TokenTask
from headwise.experiments.key_recall import KeyRecall
from headwise.experiments.language_modelling import LanguageModelling
from headwise.experiments.models import c3tr_for, patch_encoder_for, recurrent_for, transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published
from headwise.experiments.sequence_tasks import (
    AssociativeRecall,
    Induction,
    MultiOffsetCopy,
    Needle,
    Transduction,
)

T = TypeVar("T")
MAX_FILE_BYTES = 2**20
TASKS: dict[str, Callable[..., TokenTask]] = {
    "multi-offset-copy": MultiOffsetCopy,
    "associative-recall": AssociativeRecall,
    "needle": Needle,
    "induction": Induction,
    "transduction": Transduction,
    "key-recall": KeyRecall,
    "classification": Classification,
    "language-modelling": LanguageModelling,
    "digits": Digits,
}


MODELS: dict[str, tuple[Callable[..., ModelDescription], tuple[str, ...]]] = {  # what makes one, and what it is told
    "transformer": (transformer_for, ()),
    "gru": (recurrent_for, ("gru",)),
    "lstm": (recurrent_for, ("lstm",)),
    "patch-encoder": (patch_encoder_for, ()),
    "c3tr": (c3tr_for, ()),
}


def read_comparison(path: Path) -> Comparison:
    """Read a comparison from a TOML file.

    `[task]` has a `kind` and that task's numbers, `[test_task]` likewise where tests are on another; `[recipe]` the
    numbers of `Recipe`; each `[[arms]]` a `name`, a `kind` ("transformer", "gru", "lstm", and for digits
    "patch-encoder" or "c3tr") and the numbers of `transformer_for`, `recurrent_for`, `patch_encoder_for` or `c3tr_for`,
    perhaps `lengthen` (as of `Arm`), and perhaps a `recipe` of its own, whose numbers go before the comparison's. Each
    `[[further_tests]]` has a `name` and the kind and numbers of a task, each `[[claims]]` what `ClaimTest` takes, each
    `[[published]]` what `Published` takes. All else stands at the top: `name`, `question`, `seeds`, `learning_rates`,
    `metric`, `buckets`, `num_validation`, `num_test`.

    Raises:
        ConfigError: the file is missing, no TOML, or holds a key or a value that is not known; the text names it.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"a comparison must be a TOML file of at most 1 MiB; {str(path)!r} is larger")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"a comparison must be a TOML file; cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a comparison must be TOML; {str(path)!r} is not: {error}") from error
    return comparison_of(content)


def comparison_of(content: Mapping[str, Any]) -> Comparison:
    """Return the comparison that the content of a file describes (see `read_comparison`)."""
    content = dict(content)
    task = _task("task", content.pop("task", None))
    test_task = _task("test_task", content.pop("test_task")) if "test_task" in content else None
    shared = _table("recipe", content.pop("recipe", {}))
    recipe = _call("recipe", Recipe, shared)
    tables = content.pop("arms", None)
    if not isinstance(tables, list):
        raise ConfigError(f"a comparison needs [[arms]], two or more; got {tables!r:.60}")
    arms = tuple(_arm(number, _table(f"arms[{number}]", table), task, shared) for number, table in enumerate(tables))
    tests = tuple(_further_test(where, table) for where, table in _tables(content, "further_tests"))
    claims = tuple(_call(where, ClaimTest, table) for where, table in _tables(content, "claims"))
    published = tuple(_call(where, Published, table) for where, table in _tables(content, "published"))
    return _call(
        "the comparison",
        Comparison,
        {**content, "task": task, "test_task": test_task, "arms": arms}
        | {"recipe": recipe, "further_tests": tests, "claims": claims, "published": published},
    )


def _tables(content: dict[str, Any], name: str) -> list[tuple[str, dict[str, Any]]]:
    """Take an array of tables out of a file, each with what to call it in an error."""
    tables = content.pop(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{name} must be tables, each under [[{name}]]; got {tables!r:.60}")
    return [(f"{name}[{number}]", _table(f"{name}[{number}]", table)) for number, table in enumerate(tables)]


def _further_test(where: str, table: dict[str, Any]) -> tuple[str, TokenTask]:
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{where} must have a name, by which claims call it; got {name!r:.60}")
    return name, _task(where, table)


def _task(where: str, table: Any) -> TokenTask:
    numbers = _table(where, table)
    kind = numbers.pop("kind", None)
    if not isinstance(kind, str) or kind not in TASKS:
        raise ConfigError(f"{where} must have a kind, one of {', '.join(TASKS)}; got {shown(kind)}")
    return _call(where, TASKS[kind], numbers)


def _arm(number: int, table: dict[str, Any], task: TokenTask, shared: Mapping[str, Any]) -> Arm:
    where = f"arms[{number}]"
    kind = table.pop("kind", "transformer")
    name, lengthen = table.pop("name", None), table.pop("lengthen", None)
    own = _table(f"{where}.recipe", table.pop("recipe")) if "recipe" in table else None
    recipe = None if own is None else _call(f"{where}.recipe", Recipe, {**shared, **own})
    if not isinstance(kind, str) or kind not in MODELS:
        raise ConfigError(f"{where} must have a kind, one of {', '.join(MODELS)}; got {shown(kind)}")
    make, told = MODELS[kind]
    model = _call(where, make, table, task, *told)
    return _call(where, Arm, {"name": name, "model": model, "recipe": recipe, "lengthen": lengthen})


def _call(where: str, make: Callable[..., T], numbers: Mapping[str, Any], *args: Any) -> T:
    """Make something of a table, whose keys must be among what it takes and whose values it must accept."""
    if isinstance(make, type):
        known = [field.name for field in fields(make)]
    else:
        known = [one.name for one in inspect.signature(make).parameters.values() if one.kind is one.KEYWORD_ONLY]
    unknown = [name for name in numbers if name not in known]
    if unknown:
        raise ConfigError(f"{where} has {unknown[0]!r}, which is none of {', '.join(known)}")
    try:
        return make(*args, **{name: _tuple(value) for name, value in numbers.items()})
    except TypeError as error:  # a name is missing, or a value of another kind where none is checked
        raise ConfigError(f"{where} cannot be made: {error}") from error


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table; got {value!r:.60}")
    return dict(value)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
