"""Stability: warmup, decay, dropout and the place of the norms, one at a time."""

from dataclasses import replace

from headwise.experiments.builtin.sources import ARTICLES
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.language_modelling import LanguageModelling
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published

ALL, NO_WARMUP, NO_DECAY, NO_DROPOUT, POST, POST_NO_WARMUP = (
    "all on",
    "no warmup",
    "no decay",
    "no dropout",
    "post-norm",
    "post-norm, no warmup",
)
XIONG = Published(
    text="with post-norm training needs warmup, with pre-norm it does not",
    source="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
    differs="translation and BERT, 6 to 12 layers",
)
VASWANI_DROPOUT = Published(
    text="without dropout BLEU falls from 25.8 to 24.6",
    source="Vaswani et al. 2017, Attention Is All You Need, table 3 (D)",
    differs="translation, 100,000 steps, one run each",
)


def comparisons() -> tuple[Comparison, ...]:
    """Return one comparison: language modelling of Python's manual by four layers, at a high learning rate.

    Every arm is the first one with one thing off. A model without any norm is not among them: no block here is without.
    """
    task = LanguageModelling(corpus="pydoc", seq_len=64, vocab_size=512)
    recipe = Recipe(steps=300, batch_size=16, learning_rate=6e-3, warmup_steps=60, evaluate_every=50)
    sudden = replace(recipe, warmup_steps=0)
    pre = transformer_for(task, num_heads=4, num_layers=4, dropout_p=0.1)
    post = transformer_for(task, num_heads=4, num_layers=4, dropout_p=0.1, norm_placement="post")
    return (
        Comparison(
            name="stability",
            question="Do warmup, decay, dropout and the place of the norms make training stable?",
            task=task,
            arms=(
                Arm(name=ALL, model=pre),
                Arm(name=NO_WARMUP, model=pre, recipe=sudden),
                Arm(name=NO_DECAY, model=pre, recipe=replace(recipe, schedule="constant")),
                Arm(name=NO_DROPOUT, model=transformer_for(task, num_heads=4, num_layers=4)),
                Arm(name=POST, model=post),
                Arm(name=POST_NO_WARMUP, model=post, recipe=sudden),
            ),
            recipe=recipe,
            metric="loss",
            num_validation=64,
            num_test=256,
            claims=_claims(),
            published=(XIONG, VASWANI_DROPOUT),
        ),
    )


def _claims() -> tuple[ClaimTest, ...]:
    worse = ClaimTest(
        text="warmup stabilises training: without it the loss is higher", source=ARTICLES, arm=NO_WARMUP, other=ALL
    )
    return (
        worse,
        replace(worse, text="decay stabilises training: without it the loss is higher", arm=NO_DECAY),
        replace(
            worse, text="dropout helps: without it the loss on texts that were not trained on is higher", arm=NO_DROPOUT
        ),
        replace(
            worse, text="dropout keeps from overfitting: without it the gap is wider", arm=NO_DROPOUT, quantity="gap"
        ),
        replace(
            worse,
            text="norms before attention are stabler than norms behind it: the loss of post-norm is higher",
            arm=POST,
        ),
        replace(worse, text="post-norm needs warmup: without it the loss is higher", arm=POST_NO_WARMUP, other=POST),
    )
