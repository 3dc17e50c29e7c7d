"""Scale: with and without the division by the square root of the head size, for heads of 8 to 256."""

from dataclasses import replace

from headwise.experiments.builtin.sources import ARTICLES
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published
from headwise.experiments.sequence_tasks import MultiOffsetCopy

SIZES = (8, 16, 32, 64, 128, 256)
NUM_HEADS = 4

VASWANI_SCALE = Published(
    text="for large head sizes products grow and the softmax has small gradients: divided by the root of the size",
    source="Vaswani et al. 2017, Attention Is All You Need, section 3.2.1",
    differs="an argument, without an experiment",
)


def comparisons() -> tuple[Comparison, ...]:
    """Return one comparison: four heads of 8 to 256 on copying from three distances, scaled and not.

    Two arms of a size have the same parameters and start from the same ones. What the scale does before the first step
    is measured by `headwise.experiments.first_step`.
    """
    task = MultiOffsetCopy()
    arms = []
    for size in SIZES:
        model = transformer_for(task, num_heads=NUM_HEADS, head_dim=size)
        bare = transformer_for(task, num_heads=NUM_HEADS, head_dim=size, scale=1.0)
        arms += [Arm(name=f"size {size}", model=model), Arm(name=f"size {size}, no scale", model=bare)]
    return (
        Comparison(
            name="scale",
            question="Does training suffer without the division by the root of the head size?",
            task=task,
            arms=tuple(arms),
            recipe=Recipe(steps=200, batch_size=32, learning_rate=3e-3, warmup_steps=20, evaluate_every=50),
            metric="loss",
            claims=tuple(claim for size in (8, 64, 256) for claim in _claims(size)),
            published=(VASWANI_SCALE,),
        ),
    )


def _claims(size: int) -> tuple[ClaimTest, ...]:
    worse = ClaimTest(
        text=f"without the scale the loss stays higher (the articles: it does not fall), heads of {size}",
        source=ARTICLES,
        arm=f"size {size}, no scale",
        other=f"size {size}",
    )
    return (
        worse,
        replace(
            worse,
            text=f"without the scale gradients are unstable: more steps are clipped, heads of {size}",
            quantity="clipped_share",
        ),
    )
