"""Reduction: heads of width E / H against heads as wide as the model, at equal width and at equal parameters."""

from dataclasses import replace

from headwise.experiments.builtin.sources import ARTICLES, BHOJANAPALLI_HEADS, VASWANI_HEADS
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import MultiOffsetCopy

REDUCED, FULL, FULL_NARROW, ONE, PAIR_FULL = (
    "8 heads of 8",
    "8 heads of 64",
    "8 heads of 36, width 36",
    "1 head of 64",
    "2 heads of 64",
)


def comparisons() -> tuple[Comparison, ...]:
    """Return the two parts: what is learned, and what longer texts cost where all scores are kept.

    The projections of reduced heads have `4 E^2` parameters whatever their number, those of full-size heads `4 H E^2`.
    At equal parameters a model with eight full-size heads is narrower: width 36 and a feed-forward of 164 inside have
    60,452 parameters, 4 more than width 64 with reduced heads.
    """
    task = MultiOffsetCopy()
    recipe = Recipe(steps=600, batch_size=64, learning_rate=3e-3, warmup_steps=60, evaluate_every=100)
    accurate = ClaimTest(
        text="full-size heads are more accurate at equal width (the articles: reduced ones lose nothing)",
        source=ARTICLES,
        arm=FULL,
        other=REDUCED,
    )
    learned = Comparison(
        name="reduction-offsets",
        question="Do full-size heads learn better?",
        task=task,
        arms=_arms(task),
        recipe=recipe,
        learning_rates=(1.5e-3, 3e-3),
        metric="exact",
        claims=(
            accurate,
            replace(accurate, text=accurate.text.replace("width", "parameters"), arm=FULL_NARROW),
            *_cost_claims(),
        ),
        published=(VASWANI_HEADS, BHOJANAPALLI_HEADS),
    )
    longer = MultiOffsetCopy(seq_len=256)
    cost = Comparison(
        name="reduction-cost",
        question="What do heads cost on 256 tokens where every score is kept?",
        task=longer,
        arms=_arms(longer),
        recipe=replace(recipe, steps=30, batch_size=8, impl="reference", warmup_steps=5, evaluate_every=30),
        metric="loss",
        num_validation=16,
        num_test=16,
        claims=_cost_claims(),
    )
    return learned, cost


def _arms(task: MultiOffsetCopy) -> tuple[Arm, ...]:
    return (
        Arm(name=REDUCED, model=transformer_for(task, num_heads=8)),
        Arm(name=ONE, model=transformer_for(task, num_heads=1)),
        Arm(name=PAIR_FULL, model=transformer_for(task, num_heads=2, head_dim=64)),
        Arm(name=FULL, model=transformer_for(task, num_heads=8, head_dim=64)),
        Arm(
            name=FULL_NARROW,
            model=transformer_for(task, embed_dim=36, num_heads=8, head_dim=36, hidden_dim=164),
        ),
    )


def _cost_claims() -> tuple[ClaimTest, ...]:
    faster = ClaimTest(
        text="with its size divided by the number of heads, attention costs less than one full-size head",
        source=ARTICLES,
        arm=REDUCED,
        other=ONE,
        quantity="steps_per_second",
    )
    return (
        faster,
        replace(faster, text="8 heads whose size is not reduced are slower than 8 reduced ones", other=FULL),
        replace(
            faster,
            text="fewer heads at the same width need less memory",
            arm=ONE,
            other=REDUCED,
            quantity="peak_bytes",
            expects="lower",
        ),
    )
