"""Kinds of attention: all earlier tokens, a window, Longformer's, BigBird's, and fewer key heads, at equal steps."""

from dataclasses import replace

from headwise.experiments.builtin.sources import ARTICLES
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.examples import TokenTask
from headwise.experiments.language_modelling import LanguageModelling
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published
from headwise.experiments.sequence_tasks import Transduction

FULL, WINDOW, LONGFORMER, BIGBIRD, GROUPED, ONE_KEY = (
    "full",
    "window of 32",
    "Longformer",
    "BigBird",
    "2 key heads",
    "1 key head",
)
MASKS = {
    FULL: "causal",
    WINDOW: "window:32",
    LONGFORMER: "longformer:64:4 & causal",
    BIGBIRD: "bigbird:16 & causal",
}
SPARSE = (WINDOW, LONGFORMER, BIGBIRD)
KEY_HEADS = {GROUPED: 2, ONE_KEY: 1}

ZAHEER = Published(
    text="bits a character on long documents: BigBird and Longformer do better than attention cut off at 512 tokens",
    source="Zaheer et al. 2020, Big Bird",
    differs="4096 tokens, both ways, against a model that cannot see so far at all",
)
AINSLIE = Published(
    text="T5-XXL with 8 key heads: quality near 64 key heads, speed near one",
    source="Ainslie et al. 2023, GQA",
    differs="11 billion parameters, turned from trained ones; the time is that of generation",
)


def comparisons() -> tuple[Comparison, ...]:
    """Return the parts: language modelling of 256 tokens, copying of up to 40, and the cost at 256 and 1024 tokens.

    All masks are causal. A window sees 32 tokens, Longformer's 33 and the first 4, BigBird's two blocks of 16, the
    first and three drawn ones. Sparse kinds are computed block by block (`impl="blocked"`), all others fused.
    """
    language = LanguageModelling(corpus="pydoc", seq_len=256, vocab_size=512)
    copy = Transduction(change="copy", max_tokens=40, vocab_size=20)
    longer = Recipe(steps=250, batch_size=32, learning_rate=3e-3, warmup_steps=25, evaluate_every=50)
    recipe = Recipe(steps=200, batch_size=8, learning_rate=3e-3, warmup_steps=20, evaluate_every=50)
    parts = [
        Comparison(
            name="attention-kinds-language",
            question="Does language modelling suffer where attention sees less?",
            task=language,
            arms=_arms(language, recipe),
            recipe=recipe,
            metric="loss",
            num_validation=32,
            num_test=64,
            claims=_quality_claims("higher"),
            published=(ZAHEER, AINSLIE),
        ),
        Comparison(
            name="attention-kinds-copy",
            question="Is what stands far back still found?",
            task=copy,
            arms=_arms(copy, longer),
            recipe=longer,
            metric="accuracy",
            buckets=(15, 30),
            claims=_quality_claims("lower"),
            published=(ZAHEER,),
        ),
    ]
    for seq_len, batch_size in ((256, 8), (1024, 2)):
        task = LanguageModelling(corpus="pydoc", seq_len=seq_len, vocab_size=512)
        short = replace(recipe, steps=12, batch_size=batch_size, warmup_steps=2, evaluate_every=12)
        parts.append(
            Comparison(
                name=f"attention-kinds-cost-{seq_len}",
                question=f"What does a step of {seq_len * batch_size} tokens cost in texts of {seq_len}?",
                task=task,
                arms=_arms(task, short),
                recipe=short,
                metric="loss",
                num_validation=2,
                num_test=2,
                claims=_cost_claims(seq_len),
            )
        )
    return tuple(parts)


def _arms(task: TokenTask, recipe: Recipe) -> tuple[Arm, ...]:
    masks = tuple(
        Arm(
            name=name,
            model=transformer_for(task, num_heads=4, num_layers=2, position="rotary", mask=mask),
            recipe=replace(recipe, impl="blocked") if name in SPARSE else None,
        )
        for name, mask in MASKS.items()
    )
    groups = tuple(
        Arm(
            name=name,
            model=transformer_for(task, num_heads=4, num_kv_heads=count, num_layers=2, position="rotary"),
        )
        for name, count in KEY_HEADS.items()
    )
    return masks + groups


def _quality_claims(worse: str) -> tuple[ClaimTest, ...]:
    return tuple(
        ClaimTest(
            text=f"{name} {'are' if name == GROUPED else 'is'} worse than full attention",
            source=ARTICLES,
            arm=name,
            other=FULL,
            expects="higher" if worse == "higher" else "lower",
        )
        for name in (*SPARSE, *KEY_HEADS)
    )


def _cost_claims(seq_len: int) -> tuple[ClaimTest, ...]:
    found = []
    for name in SPARSE:
        less = ClaimTest(
            text=f"{name} needs less memory than full attention at {seq_len} tokens",
            source=ARTICLES,
            arm=name,
            other=FULL,
            expects="lower",
            quantity="peak_bytes",
        )
        faster = f"{name} trains faster than full attention at {seq_len} tokens"
        found += [less, replace(less, text=faster, expects="higher", quantity="steps_per_second")]
    return tuple(found)
