"""Length: recurrent models and a Transformer by length of text, trained with and without texts over 30 tokens."""

from dataclasses import replace

from headwise.config.model import ModelConfig
from headwise.cost.parameters import count_parameters
from headwise.experiments.builtin.sources import ARORA_RECALL, ARTICLES, BAHDANAU_LENGTH, VARIS_LENGTH
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.classification import Classification
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.examples import TokenTask
from headwise.experiments.key_recall import KeyRecall
from headwise.experiments.models import recurrent_for, transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import Transduction

SHORT, LONGEST = 30, 40  # tokens of a text: the articles' bound, and the longest there is
BUCKETS = (10, 20, SHORT)
TRANSFORMER, GRU, LSTM = "Transformer", "GRU", "LSTM"


def comparisons() -> tuple[Comparison, ...]:
    """Return the parts: copy, reverse and recall, each trained with and without long texts, and Reuters R8.

    All are tested on the same texts of up to 40 tokens, told apart by length. Recurrent rivals come as near to the
    Transformer's parameters as a whole width can, each with and without attention over its own earlier states. The
    Transformer has rotary positions: in a trial it learned to copy sooner with them than with sinusoidal ones.
    """
    parts = [
        _part(f"length-{name}-{kind}", task_of(longest), task_of(LONGEST), kind)
        for name, task_of in (("copy", _copy), ("reverse", _reverse), ("recall", _recall))
        for kind, longest in (("all", LONGEST), ("short", SHORT))
    ]
    return (*parts, _news())


def _copy(longest: int) -> TokenTask:
    return Transduction(change="copy", max_tokens=longest, vocab_size=20)


def _reverse(longest: int) -> TokenTask:
    return Transduction(change="reverse", max_tokens=longest, vocab_size=20)


def _recall(longest: int) -> TokenTask:
    return KeyRecall(max_pairs=longest // 2, num_questions=8, vocab_size=44)


def _part(name: str, task: TokenTask, test_task: TokenTask, kind: str) -> Comparison:
    trained = "on texts of all lengths" if kind == "all" else f"on texts of at most {SHORT} tokens"
    return Comparison(
        name=name,
        question=f"Trained {trained}, who falls off beyond {SHORT}?",
        task=task,
        arms=_arms(task, num_layers=2, max_positions=test_task.max_len),
        recipe=Recipe(steps=400, batch_size=32, learning_rate=3e-3, warmup_steps=40, evaluate_every=100),
        metric="accuracy",
        test_task=test_task,
        buckets=BUCKETS,
        num_validation=128,
        claims=_claims(f">{SHORT}", f"{BUCKETS[1] + 1}-{SHORT}"),
        published=(BAHDANAU_LENGTH, VARIS_LENGTH, ARORA_RECALL),
    )


def _news() -> Comparison:
    task = Classification(corpus="r8", max_tokens=128, vocab_size=2000)
    return Comparison(
        name="length-r8",
        question="Who tells the class of long texts less well than that of short ones?",
        task=task,
        arms=_arms(task, num_layers=1, max_positions=task.max_len),
        recipe=Recipe(steps=150, batch_size=32, learning_rate=3e-3, warmup_steps=15, evaluate_every=50),
        metric="accuracy",
        buckets=(40, 80),
        num_validation=200,
        num_test=2200,
        claims=_claims(">80", "<=40"),
        published=(BAHDANAU_LENGTH,),
    )


def _arms(task: TokenTask, *, num_layers: int, max_positions: int) -> tuple[Arm, ...]:
    model = transformer_for(task, num_heads=4, num_layers=num_layers, position="rotary", max_positions=max_positions)
    return (Arm(name=TRANSFORMER, model=model), *_rivals(task, model))


def _rivals(task: TokenTask, model: ModelConfig) -> tuple[Arm, ...]:
    size = count_parameters(model).total
    return tuple(
        Arm(
            name=f"{name} with attention" if attends else name,
            model=recurrent_for(task, "gru" if name == GRU else "lstm", num_parameters=size, attends=attends),
        )
        for name in (GRU, LSTM)
        for attends in (False, True)
    )


def _claims(long: str, before: str) -> tuple[ClaimTest, ...]:
    falls = ClaimTest(
        text=f"on long texts a {GRU} loses more than a Transformer (37 % and 5 % of BLEU)",
        source=ARTICLES,
        arm=GRU,
        other=TRANSFORMER,
        expects="lower",
        where=long,
        minus=before,
    )
    return (
        falls,
        *(
            replace(falls, text=falls.text.replace(f"a {GRU}", f"{article} {arm}"), arm=arm)
            for article, arm in (("an", LSTM), ("a", f"{GRU} with attention"), ("an", f"{LSTM} with attention"))
        ),
        replace(
            falls,
            text="attention mends what a recurrent model loses on long texts",
            arm=f"{GRU} with attention",
            other=GRU,
            expects="higher",
        ),
        replace(
            falls,
            text="on long texts a Transformer is more accurate than a recurrent model",
            arm=TRANSFORMER,
            other=GRU,
            expects="higher",
            minus=None,
        ),
    )
