"""Models are told which tokens are padding, answers are counted by class, and runs fit into their budgets."""

import dataclasses

import pytest
import torch
from sklearn.metrics import f1_score

import headwise
from headwise.config.head import OutputHead
from headwise.cost.flops import forward_flops
from headwise.errors import ConfigError
from headwise.experiments.answers import AnswerSums
from headwise.experiments.asking import evaluate, make_model, scores_of
from headwise.experiments.budget import steps_for, with_steps
from headwise.experiments.examples import IGNORED, Examples, TokenTask
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.sequence_tasks import MultiOffsetCopy
from headwise.experiments.text_flops import text_flops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classes(TokenTask):
    """Texts of 2 to 7 tokens; the class of a text, asked for at its last token, is its first token's, less 3, mod 5."""

    vocab_size: int = 13
    seq_len: int = 7

    @property
    def num_classes(self):
        return 5

    def draw(self, num_examples, *, seed, split="train"):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 8, (num_examples,), generator=generator)
        ids = torch.randint(3, 13, (num_examples, 7), generator=generator)
        real = torch.arange(7) < lengths[:, None]
        targets = torch.full((num_examples, 7, 1), IGNORED)
        targets[torch.arange(num_examples), lengths - 1, 0] = (ids[:, 0] - 3) % 5
        return Examples(ids * real, targets, lengths, real)


TASK = Classes()
SIZES = {"embed_dim": 12, "num_heads": 3}


@pytest.mark.parametrize("kind", ["causal", "both ways", "gru", "classifier"])
def test_padding_changes_nothing(kind):
    """Whatever stands there, and however much of it: each text alone has the scores that it has in the batch."""
    torch.manual_seed(0)
    if kind == "gru":
        model = RecurrentConfig(cell="gru", vocab_size=13, embed_dim=11, num_outputs=5, attends=True)
    else:
        model = transformer_for(TASK, mask=headwise.Causal() if kind == "causal" else headwise.Full(), **SIZES)
    if kind == "classifier":
        head = OutputHead(kind="classifier", num_outputs=5, bias=True, tied=False, per_token=True)
        model = dataclasses.replace(model, head=head)
    module = make_model(model).eval()
    examples = TASK.draw(23, seed=1)
    other = dataclasses.replace(examples, ids=torch.where(examples.real, examples.ids, 11))
    together, changed = scores_of(module, examples, TASK), scores_of(module, other, TASK)
    assert together.shape == (23, 7, 1, 5)
    for row, length in enumerate(examples.lengths.tolist()):
        alone = Examples(examples.ids[row : row + 1, :length], examples.targets[:1, :length], examples.lengths[:1])
        expected = scores_of(module, alone, TASK)[0]
        # float32: sums of at most 7 * 48 terms in another order, of numbers below 1
        torch.testing.assert_close(together[row, :length], expected, rtol=0, atol=7 * 48 * 2**-24)
        torch.testing.assert_close(changed[row, :length], expected, rtol=0, atol=7 * 48 * 2**-24)


def test_what_is_told_of_padding_is_taken_along():
    examples = TASK.draw(11, seed=2)
    part = examples.take(slice(3, 5))
    assert torch.equal(part.real, examples.real[3:5]) and torch.equal(part.ids, examples.ids[3:5])
    moved = part.to(torch.device("meta"))
    assert {moved.ids.device, moved.targets.device, moved.lengths.device, moved.real.device} == {torch.device("meta")}
    assert dataclasses.replace(part, real=None).take(slice(0, 1)).real is None


def test_f1_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(4)
    targets = torch.randint(0, 6, (97, 3, 1), generator=generator)  # class 6 of 7 is wanted by nobody
    targets[torch.rand(97, 3, 1, generator=generator) < 0.3] = IGNORED
    targets[:, 0] = 2
    scores = torch.randn(97, 3, 1, 7, generator=generator)
    scores[..., 6] = -9.0  # and given by nobody
    sums = AnswerSums(num_classes=7)
    for start in range(0, 97, 40):
        sums.add(scores[start : start + 40], targets[start : start + 40])
    asked = targets != IGNORED
    expected = f1_score(targets[asked], scores.argmax(-1)[asked], average="macro")
    assert sums.metrics()["macro_f1"] == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < 1
    assert AnswerSums(num_classes=7).metrics()["macro_f1"] == 0.0


def test_f1_is_told_of_classes_and_not_of_tokens():
    module = make_model(transformer_for(TASK, **SIZES))
    assert "macro_f1" in evaluate(module, TASK.draw(7, seed=0), TASK)
    copy = MultiOffsetCopy(vocab_size=5, seq_len=9, offsets=(1, 3))
    assert "macro_f1" not in evaluate(make_model(transformer_for(copy, **SIZES)), copy.draw(7, seed=0), copy)


def test_budgets_of_tokens_and_flops_are_steps():
    model = transformer_for(TASK, **SIZES)
    steps = Recipe(steps=17, batch_size=6)
    assert steps_for(steps, TASK, model) == 17
    tokens = dataclasses.replace(steps, budget_tokens=6 * 7 * 19 + 41)
    assert steps_for(tokens, TASK, model) == 19
    assert with_steps(tokens, TASK, model) == dataclasses.replace(steps, steps=19)
    one = 3 * forward_flops(model, batch=6, seq=7).attended
    flops = dataclasses.replace(steps, budget_flops=2.5 * one)
    assert steps_for(flops, TASK, model) == 2
    assert with_steps(flops, TASK, model) == dataclasses.replace(steps, steps=2)
    seconds = dataclasses.replace(steps, budget_seconds=3.0)
    assert with_steps(seconds, TASK, model) == seconds


def test_flops_of_a_text_are_those_of_the_pairs_that_its_mask_allows():
    for mask in ("causal", "window:2", "full"):
        model = transformer_for(TASK, mask=mask, **SIZES)
        count = forward_flops(model, batch=1, seq=7)
        assert text_flops(model, 7) == count.attended
        assert (count.attended < count.dense) == (mask != "full")


def test_budgets_that_buy_nothing_or_cannot_be_counted_are_refused():
    model = transformer_for(TASK, **SIZES)
    with pytest.raises(ConfigError, match="budget_tokens must pay for one step at the least, 42; got 41"):
        steps_for(Recipe(batch_size=6, budget_tokens=41), TASK, model)
    with pytest.raises(ConfigError, match="budget_flops must pay for one step at the least, "):
        steps_for(Recipe(budget_flops=1.0), TASK, model)
    with pytest.raises(ConfigError, match="one budget at most; got budget_tokens and budget_seconds"):
        Recipe(budget_tokens=100, budget_seconds=1.0)
    with pytest.raises(ConfigError, match="budget_flops"):
        Recipe(budget_flops=0.0)


def test_a_recurrent_model_has_no_blocks_to_checkpoint():
    gru = RecurrentConfig(cell="gru", vocab_size=13, embed_dim=11, num_outputs=5)
    with pytest.raises(ConfigError, match='checkpoint "none" and impl "auto"; got \'full\''):
        make_model(gru, checkpoint="full")
