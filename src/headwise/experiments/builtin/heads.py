"""Heads: one to thirty-two at equal parameters, on copying, recall and two corpora of news."""

from dataclasses import replace

from headwise.experiments.builtin.sources import (
    ARTICLES,
    BHOJANAPALLI_HEADS,
    LIU_HEADS,
    MICHEL_HEADS,
    VASWANI_HEADS,
)
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.classification import Classification
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.examples import TokenTask
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import AssociativeRecall, MultiOffsetCopy

COUNTS = (1, 2, 4, 8, 16, 32)


def comparisons() -> tuple[Comparison, ...]:
    """Return the parts: copying from three distances, recall of four pairs, BBC News and Reuters R8.

    Arms differ in the number of heads that the same width of 64 is shared among, and so have the same parameters. A
    control has one head a layer in three times as many layers (of recall and news twice), and more parameters.

    One softmax reads one place or a mixture: three distances at once need three heads in a layer, or three layers.
    """
    return (_offsets(), _recall(), *_news())


def _offsets() -> Comparison:
    task = MultiOffsetCopy()
    return Comparison(
        name="heads-offsets",
        question="Can one head read three places at once?",
        task=task,
        arms=_arms(task, num_layers=1, deeper=3),
        recipe=Recipe(steps=600, batch_size=64, learning_rate=3e-3, warmup_steps=60, evaluate_every=100),
        learning_rates=(1.5e-3, 3e-3),
        metric="exact",
        claims=_claims(),
        published=(VASWANI_HEADS, LIU_HEADS),
    )


def _recall() -> Comparison:
    task = AssociativeRecall(num_pairs=4, seq_len=16, vocab_size=20, power=1.0)
    return Comparison(
        name="heads-recall",
        question="Do more heads find the value of a key better?",
        task=task,
        arms=_arms(task, num_layers=2, deeper=4),
        recipe=Recipe(steps=2000, batch_size=32, learning_rate=1e-3, warmup_steps=100, evaluate_every=200),
        metric="accuracy",
        claims=_claims(),
        published=(VASWANI_HEADS, BHOJANAPALLI_HEADS),
    )


def _news() -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            name=f"heads-{corpus}",
            question=f"Do more heads tell the classes of {title} apart better?",
            task=task,
            arms=_arms(task, num_layers=1, deeper=2, dropout_p=0.1),
            recipe=Recipe(steps=200, batch_size=16, learning_rate=3e-3, warmup_steps=20, evaluate_every=50),
            metric="macro_f1",
            buckets=buckets,
            num_validation=200,
            num_test=2200,
            claims=(*_claims(metric="accuracy"), *(_claim_about_long_texts(f">{bound}") for bound in buckets[-1:])),
            published=(VASWANI_HEADS, MICHEL_HEADS),
        )
        # nearly all of BBC's texts are longer than what is read of them: lengths are told apart for R8 alone
        for corpus, title, buckets in (("bbc", "BBC News", ()), ("r8", "Reuters R8", (30, 60)))
        for task in (Classification(corpus=corpus, max_tokens=96, vocab_size=2000),)
    )


def _claim_about_long_texts(bucket: str) -> ClaimTest:
    return ClaimTest(
        text="8 heads are more accurate than 1 on long texts (the articles: by 11.7 points)",
        source=ARTICLES,
        arm="8 heads",
        other="1 head",
        metric="accuracy",
        where=bucket,
    )


def _arms(task: TokenTask, *, num_layers: int, deeper: int, dropout_p: float = 0.0) -> tuple[Arm, ...]:
    numbers = [(count, num_layers) for count in COUNTS] + [(1, deeper)]
    return tuple(
        Arm(
            name=("1 head" if count == 1 else f"{count} heads")
            + (f", {layers} layers" if layers != num_layers else ""),
            model=transformer_for(task, num_heads=count, num_layers=layers, dropout_p=dropout_p),
        )
        for count, layers in numbers
    )


def _claims(metric: str | None = None) -> tuple[ClaimTest, ...]:
    eight = ClaimTest(
        text="8 heads are more accurate than 1 (the articles: by 4.2 to 4.4 points)",
        source=ARTICLES,
        arm="8 heads",
        other="1 head",
        metric=metric,
    )
    return (
        eight,
        replace(
            eight,
            text="8 heads train slower than 1 (the articles: 1.2 times)",
            expects="lower",
            metric=None,
            quantity="steps_per_second",
        ),
        replace(
            eight,
            text="8 heads reach an accuracy of 0.9 in less time than 1",
            expects="lower",
            metric=None,
            quantity="seconds_to_0.9",
        ),
        replace(
            eight,
            text="too few heads limit: 2 are less accurate than 8",
            arm="2 heads",
            other="8 heads",
            expects="lower",
        ),
        replace(
            eight,
            text="too many heads harm: 32 are less accurate than 8",
            arm="32 heads",
            other="8 heads",
            expects="lower",
        ),
        replace(
            eight,
            text="too many heads overfit: the gap of 32 is wider than that of 8",
            arm="32 heads",
            other="8 heads",
            metric=None,
            quantity="gap",
        ),
    )
