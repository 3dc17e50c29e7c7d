"""What the best state of a run is worth: its test, told apart by lengths, and the further tests, each taken once."""

from dataclasses import dataclass, field

import torch
from torch import nn

from headwise.config.model import ModelConfig
from headwise.experiments.answers import bucket_of
from headwise.experiments.asking import ModelDescription, evaluate
from headwise.experiments.examples import Examples, TokenTask
from headwise.experiments.lengthen import Lengthen, lengthen


@dataclass(frozen=True, kw_only=True)
class Tests:
    """What came out of them.

    Args:
        test, by_length, further, notes: as of `Run`.
    """

    test: dict[str, float] = field(default_factory=dict)
    by_length: dict[str, dict[str, float]] = field(default_factory=dict)
    further: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def take_tests(
    module: nn.Module,
    model: ModelDescription,
    tests: dict[str, TokenTask],
    *,
    num_examples: int,
    seed: int,
    buckets: tuple[int, ...],
    how: Lengthen | None,
) -> Tests:
    """Ask a module every test once.

    Args:
        module: in its best state; it stays as it is.
        model: that it was built from.
        tests: by name; the run's own is "test", and comes first.
        num_examples: texts of each.
        seed: that their texts are drawn with.
        buckets: bounds of lengths that the run's own test is told apart by; () = it is not.
        how: a learned position table is made longer for longer texts. None: such a test is not taken, and a note says
            so.
    """
    results: dict[str, dict[str, float]] = {}
    by_length: dict[str, dict[str, float]] = {}
    notes: dict[str, str] = {}
    for name, task in tests.items():
        asked, note = _long_enough(module, model, task, how)
        if note is not None:
            results[name], notes[name] = {}, note
            continue
        examples = task.draw(num_examples, seed=seed, split="test")
        results[name] = evaluate(asked, examples, task)
        if name == "test" and buckets:
            by_length = {bucket: evaluate(asked, part, task) for bucket, part in _parted(examples, buckets).items()}
    return Tests(test=results.pop("test"), by_length=by_length, further=results, notes=notes)


def _long_enough(
    module: nn.Module, model: ModelDescription, task: TokenTask, how: Lengthen | None
) -> tuple[nn.Module, str | None]:
    """Return a module that can read the task's texts, or why there is none."""
    rows = model.position_table_size if isinstance(model, ModelConfig) else 0
    if not rows or task.max_len <= rows:
        return module, None
    assert isinstance(model, ModelConfig)
    if how is None:
        return module, (
            f"not taken: texts have up to {task.max_len} tokens, and the learned position table has {rows} rows; "
            'give lengthen="clamp" or "interpolate"'
        )
    return lengthen(module, model, task.max_len, how), None


def _parted(examples: Examples, buckets: tuple[int, ...]) -> dict[str, Examples]:
    """Return the texts of each bucket of lengths."""
    names = [bucket_of(length, buckets) for length in examples.lengths.tolist()]
    return {
        bucket: examples.take(torch.tensor([number for number, name in enumerate(names) if name == bucket]))
        for bucket in sorted(set(names))
    }
