"""The built-in comparisons by name: what each asks, and its parts.

A built-in is one comparison or several, its parts: the same question put to several tasks, each a `Comparison` with
arms, claims and results of its own. `builtin(name)` returns the parts, `questions()` what each built-in asks,
`quick(parts)` shorter ones. Parts are called "NAME-TASK", or "NAME" where there is one alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from headwise.errors import ConfigError
from headwise.experiments.builtin.plan import core_seconds
from headwise.experiments.compare import Comparison
from headwise.experiments.recipe import Recipe

QUICK_SECONDS = 240  # of one core: two minutes on two; what is not trained takes another one
QUICK_SEEDS = 3

QUESTIONS = {
    "heads": "Do more heads learn better at equal parameters, and what do they cost?",
    "reduction": "What does it change that a head's size is the width divided by the number of heads?",
    "length": "Do recurrent models fall off on texts over 30 tokens, and Transformers not?",
    "positions": "Which positions go on beyond the trained length?",
    "attention-kinds": "What do windows, global tokens, random blocks and shared key heads cost and save?",
    "precision-and-memory": "What do autocast, checkpointing and fused attention save, and does the loss suffer?",
    "scale": "What happens without the division by the square root of the head size?",
    "stability": "Do warmup, decay, dropout and the place of the norms make training stable?",
}
"""What each built-in comparison asks, in the order of the documentation; each is made by a file of its name here."""


def builtin(name: str) -> tuple[Comparison, ...]:
    """Return the parts of a built-in comparison.

    Args:
        name: one of `questions()`.

    Raises:
        ConfigError: there is none of that name.
        DataError: a corpus that a part needs is not there.
    """
    if name not in QUESTIONS:
        raise ConfigError(f"a built-in comparison must be one of {', '.join(QUESTIONS)}; got {name!r}")
    # by its name, so that one that needs no corpus does not wait for those that do
    make: Callable[[], tuple[Comparison, ...]] = import_module(
        f"headwise.experiments.builtin.{name.replace('-', '_')}"
    ).comparisons
    return make()


def questions() -> dict[str, str]:
    """Return what each built-in comparison asks, by its name."""
    return dict(QUESTIONS)


def quick(parts: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the parts with three seeds, one learning rate, the recipe's own, and so few steps that they take minutes.

    All parts are shortened alike: to a third of their steps, or of the budget in their place, and built-in ones
    further, until training takes two minutes on two cores. Three seeds decide nothing; the result says so.
    """
    fewer = [replace(part, seeds=part.seeds[:QUICK_SEEDS], learning_rates=()) for part in parts]
    seconds = core_seconds(fewer)
    share = 1 / 3 if seconds is None else min(1 / 3, QUICK_SECONDS / seconds)
    return tuple(
        replace(
            part,
            recipe=_shorter(part.recipe, share),
            arms=tuple(
                arm if arm.recipe is None else replace(arm, recipe=_shorter(arm.recipe, share)) for arm in part.arms
            ),
        )
        for part in fewer
    )


def _shorter(recipe: Recipe, share: float) -> Recipe:
    steps = max(1, int(recipe.steps * share))
    return replace(
        recipe,
        steps=steps,
        budget_tokens=None if recipe.budget_tokens is None else max(1, int(recipe.budget_tokens * share)),
        budget_flops=None if recipe.budget_flops is None else recipe.budget_flops * share,
        budget_seconds=None if recipe.budget_seconds is None else recipe.budget_seconds * share,
        warmup_steps=min(recipe.warmup_steps, max(int(recipe.warmup_steps > 0), int(recipe.warmup_steps * share))),
        evaluate_every=max(1, min(steps, int(recipe.evaluate_every * share))),
    )
