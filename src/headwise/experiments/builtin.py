"""Comparisons that come with headwise, each a claim of articles put to the test."""

from collections.abc import Callable
from dataclasses import replace

from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import MultiOffsetCopy


def heads() -> Comparison:
    """Return 1 to 32 heads at equal parameters, and one head in three layers, on copying from three distances.

    One softmax reads one place or a mixture; three distances at once need three heads in a layer, or three layers.
    """
    task = MultiOffsetCopy()
    arms = [
        Arm(name="1 head" if count == 1 else f"{count} heads", model=transformer_for(task, num_heads=count))
        for count in (1, 2, 4, 8, 16, 32)
    ]
    deeper = Arm(name="1 head, 3 layers", model=transformer_for(task, num_heads=1, num_layers=3))
    return Comparison(
        name="heads",
        task=task,
        arms=(*arms, deeper),
        recipe=Recipe(steps=1500, batch_size=64, learning_rate=2e-3, warmup_steps=100, evaluate_every=250),
        learning_rates=(1e-3, 2e-3, 4e-3),
        metric="exact",
    )


BUILTIN: dict[str, Callable[[], Comparison]] = {"heads": heads}


def quick(comparison: Comparison) -> Comparison:
    """Return a comparison that takes minutes: a third of the steps, three seeds, one learning rate, the recipe's own.

    Three seeds decide nothing; the result says so.
    """

    def shorter(recipe: Recipe) -> Recipe:
        steps = max(1, recipe.steps // 3)
        return replace(
            recipe,
            steps=steps,
            warmup_steps=min(recipe.warmup_steps, steps // 3),
            evaluate_every=min(recipe.evaluate_every, steps),
        )

    return replace(
        comparison,
        recipe=shorter(comparison.recipe),
        arms=tuple(arm if arm.recipe is None else replace(arm, recipe=shorter(arm.recipe)) for arm in comparison.arms),
        seeds=comparison.seeds[:3],
        learning_rates=(),
    )
