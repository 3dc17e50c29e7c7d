"""What a run's numbers depend on, and what of it cannot be."""

from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

from headwise.config.attention import AttentionConfig
from headwise.config.checks import (
    require_choice,
    require_instance,
    require_size,
    require_sizes,
    require_text,
    shown,
)
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError
from headwise.experiments.asking import ModelDescription, require_ways
from headwise.experiments.budget import with_steps
from headwise.experiments.examples import TokenTask
from headwise.experiments.image_classifier import ImageClassifierConfig
from headwise.experiments.lengthen import Lengthen
from headwise.experiments.models import reads_later
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that a run's numbers depend on.

    Args:
        task: what is learned; its vocabulary and answers must fit the model.
        model: what learns it: ours, or a recurrent rival. It puts out `num_answers * num_classes` numbers a token.
        recipe: how.
        seed: of the weights, the dropout and the data; arms with one seed see the same batches in the same order.
        num_validation, num_test: texts that the best state is chosen on, and that it is tested on once.
        test_task: what it is tested on, where that is another task: longer texts, say. Default: the same.
        buckets: bounds of lengths that tests are told apart by.
        further_tests: other tasks that the best state is tested on once, each with a name of its own.
        lengthen: how a learned position table is made longer for tests with longer texts: "clamp" or "interpolate".
            Default: such tests are not taken.

    Raises:
        ConfigError: a number is out of range; two further tests share a name, or one is called "test"; bounds of
            lengths do not rise; the model does not fit a task, or has no table to lengthen; or it would see the answers
            of a task that asks for the next token.
    """

    task: TokenTask
    model: ModelDescription
    recipe: Recipe
    seed: int = 0
    num_validation: int = 256
    num_test: int = 512
    test_task: TokenTask | None = None
    buckets: tuple[int, ...] = ()
    further_tests: tuple[tuple[str, TokenTask], ...] = ()
    lengthen: Lengthen | None = None

    def __post_init__(self) -> None:
        require_instance("task", self.task, TokenTask)
        require_instance("recipe", self.recipe, Recipe)
        require_size("seed", self.seed, minimum=0)
        require_size("num_validation", self.num_validation)
        require_size("num_test", self.num_test)
        names = ["test", *(name for name, _ in self.further_tests)]
        for name, task in self.further_tests:
            require_text("the name of a further test", name)
            require_instance(f"further test {name!r}", task, TokenTask)
        if len(set(names)) < len(names):
            raise ConfigError(f'further tests must have names of their own, none "test"; got {", ".join(names[1:])}')
        if self.lengthen is not None:
            require_choice("lengthen", self.lengthen, ("clamp", "interpolate"))
            if not getattr(self.model, "position_table_size", 0):
                raise ConfigError("lengthen is for models with a learned position table, which this one has not")
        require_sizes("buckets", self.buckets)
        if any(one >= other for one, other in pairwise(self.buckets)):
            raise ConfigError(f"buckets must be lengths, each longer than the one before; got {shown(self.buckets)}")
        require_ways(self.model, checkpoint=self.recipe.checkpoint, impl=self.recipe.impl)
        with_steps(self.recipe, self.task, self.model)  # a budget pays for a step at the least
        for each in (self.task, self.test_task, *(task for _, task in self.further_tests)):
            if each is not None:
                _require_fit(self.model, each)
                _require_no_answers_seen(self.model, each)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON can hold them, with the kinds of task and model."""
        return {field.name: _described(getattr(self, field.name)) for field in fields(self)}


def _require_fit(model: ModelDescription, task: TokenTask) -> None:
    if isinstance(model, ImageClassifierConfig):
        rows, outputs = model.num_greys + 1, model.num_outputs
    elif isinstance(model, RecurrentConfig):
        rows, outputs = model.vocab_size, model.num_outputs
    else:
        rows, outputs = model.vocab_size, model.head.num_outputs if model.head is not None else 0
    if rows < task.vocab_size or outputs != task.num_answers * task.num_classes:
        raise ConfigError(
            f"a model of {type(task).__name__} must know {task.vocab_size} tokens and put out "
            f"{task.num_answers * task.num_classes} numbers for each; got {rows} and {outputs}"
        )


def _require_no_answers_seen(model: ModelDescription, task: TokenTask) -> None:
    if not task.asks_ahead or not isinstance(model, ModelConfig):
        return
    masks = [block.attention.mask for block in model.blocks if isinstance(block.attention, AttentionConfig)]
    if any(reads_later(mask, task.max_len) for mask in dict.fromkeys(masks)):
        raise ConfigError(
            f"{type(task).__name__} asks for the next token, which a mask that reads later ones sees; make it causal: "
            '"longformer:16:2 & causal", say'
        )


def _described(value: Any) -> Any:
    """Return a value as JSON can hold it; of a dataclass its kind, too, at any depth: all that some masks differ in.

    Of a task on a corpus also which texts these are: a run on others is another run, whatever its numbers.
    """
    if is_dataclass(value):
        own = {field.name: _described(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, TokenTask) and value.data_version is not None:
            own["data"] = value.data_version
        return {type(value).__name__: own}
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    return {str(key): _described(each) for key, each in value.items()} if isinstance(value, dict) else value
