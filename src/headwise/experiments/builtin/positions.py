"""Positions: seven kinds trained on 64 tokens and asked at up to eight times as many."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from headwise.experiments.builtin.sources import ARTICLES, KAZEMNEJAD_POSITIONS, PRESS_POSITIONS
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.examples import TokenTask
from headwise.experiments.language_modelling import LanguageModelling
from headwise.experiments.models import Position, transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import Transduction

TRAINED_LEN = 64
STRETCH = 2048  # tokens that every evaluation asks for, the very same ones
CLAMPED, STRETCHED = "learned, clamped", "learned, interpolated"
KINDS: tuple[tuple[str, Position, Literal["clamp", "interpolate"] | None], ...] = (
    ("sinusoidal", "sinusoidal", None),
    ("none", "none", None),
    (CLAMPED, "learned", "clamp"),
    (STRETCHED, "learned", "interpolate"),
    ("rotary", "rotary", None),
    ("ALiBi", "alibi", None),
    ("T5", "t5", None),
)


def comparisons() -> tuple[Comparison, ...]:
    """Return the parts: language modelling of Python's manual, and copying, which reads what stands far back.

    Tests of language modelling ask for the same tokens at every length: in windows side by side, whose first tokens see
    little, and in windows that slide by 16 tokens, where every token sees a long past. Both learned arms are trained
    alike; what their tables hold beyond the trained length is made up before a test (`headwise.experiments.lengthen`).
    """
    return _language(), _copy()


def _language() -> Comparison:
    task = _window(TRAINED_LEN, None)
    tests = [(f"{times}x, side by side", _window(times * TRAINED_LEN, None)) for times in (2, 4, 8)]
    tests += [(f"{times}x, sliding", _window(times * TRAINED_LEN, 16)) for times in (1, 2, 4, 8)]
    return Comparison(
        name="positions-language",
        question="Whose loss stays low on texts longer than those of training?",
        task=task,
        arms=_arms(task),
        recipe=Recipe(steps=300, batch_size=32, learning_rate=3e-3, warmup_steps=30, evaluate_every=75),
        metric="loss",
        num_validation=64,
        num_test=STRETCH // 16,
        further_tests=tuple(tests),
        claims=_claims([name for name, _ in tests if name.startswith(("2x", "8x"))], worse="higher"),
        published=(PRESS_POSITIONS, KAZEMNEJAD_POSITIONS),
    )


def _window(seq_len: int, stride: int | None) -> LanguageModelling:
    return LanguageModelling(corpus="pydoc", seq_len=seq_len, stride=stride, vocab_size=512, stretch=STRETCH)


def _copy() -> Comparison:
    def texts(shortest: int, longest: int) -> Transduction:
        return Transduction(change="copy", min_len=shortest, max_tokens=longest, vocab_size=20)

    trained = TRAINED_LEN // 2 - 1  # a text is written twice, with a mark between and one behind
    tests = [(f"{times}x", texts(times * trained // 2 + 1, times * trained)) for times in (2, 4, 8)]
    task = texts(1, trained)
    return Comparison(
        name="positions-copy",
        question="Who copies texts longer than those of training?",
        task=task,
        arms=_arms(task),
        recipe=Recipe(steps=400, batch_size=32, learning_rate=3e-3, warmup_steps=40, evaluate_every=100),
        metric="accuracy",
        num_test=128,
        further_tests=tuple(tests),
        claims=_claims(["2x", "8x"], worse="lower"),
        published=(KAZEMNEJAD_POSITIONS,),
    )


def _arms(task: TokenTask) -> tuple[Arm, ...]:
    return tuple(
        Arm(
            name=name,
            model=transformer_for(task, num_heads=4, num_layers=2, position=position),
            lengthen=lengthen,
        )
        for name, position, lengthen in KINDS
    )


def _claims(places: Sequence[str], *, worse: Literal["higher", "lower"]) -> tuple[ClaimTest, ...]:
    better: Literal["higher", "lower"] = "higher" if worse == "lower" else "lower"
    found = []
    for place in places:
        robust = ClaimTest(
            text=f"fixed positions fail beyond the trained length, learned ones are more robust ({place}, clamped)",
            source=ARTICLES,
            arm=CLAMPED,
            other="sinusoidal",
            expects=better,
            where=place,
        )
        found += [
            robust,
            replace(robust, text=robust.text.replace("clamped", "interpolated"), arm=STRETCHED),
            replace(robust, text=f"rotary positions go on better than sinusoidal ones ({place})", arm="rotary"),
            replace(robust, text=f"ALiBi goes on better than rotary ({place})", arm="ALiBi", other="rotary"),
            replace(robust, text=f"no positions go on better than sinusoidal ones ({place})", arm="none"),
        ]
    return tuple(found)
