"""Budgets: how many steps a number of tokens or of FLOPs pays for."""

from dataclasses import replace

from headwise.errors import ConfigError
from headwise.experiments.asking import ModelDescription
from headwise.experiments.examples import TokenTask
from headwise.experiments.recipe import Recipe
from headwise.experiments.text_flops import text_flops


def steps_for(recipe: Recipe, task: TokenTask, model: ModelDescription) -> int:
    """Return the steps of a recipe: its own, or as many as its budget of tokens or FLOPs pays for.

    A step takes `batch_size * max_len` tokens, with padding, and 3 forward passes of FLOPs (`text_flops`): backward is
    twice as much as forward.

    Args:
        recipe: whose budget it is.
        task: how long texts are.
        model: what a token takes, for a budget of FLOPs.

    Raises:
        ConfigError: the budget does not pay for a step.
    """
    budget: float
    if recipe.budget_tokens is not None:
        budget, name, cost = recipe.budget_tokens, "budget_tokens", recipe.batch_size * task.max_len
    elif recipe.budget_flops is not None:
        cost = 3 * recipe.batch_size * text_flops(model, task.max_len)
        budget, name = recipe.budget_flops, "budget_flops"
    else:
        return recipe.steps
    steps = int(budget // cost)
    if steps < 1:
        raise ConfigError(f"{name} must pay for one step at the least, {cost:,}; got {budget:,}")
    return steps


def with_steps(recipe: Recipe, task: TokenTask, model: ModelDescription) -> Recipe:
    """Return a recipe whose steps are those that its budget pays for."""
    return replace(recipe, steps=steps_for(recipe, task, model), budget_tokens=None, budget_flops=None)
