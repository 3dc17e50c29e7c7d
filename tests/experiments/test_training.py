"""Training does what torch's own pieces do, in however many parts, and goes on bit for bit where it was stopped."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.errors import ConfigError, TrainingError
from headwise.experiments.answers import AnswerSums, bucket_of, loss_sum
from headwise.experiments.examples import IGNORED, Examples
from headwise.experiments.recipe import Recipe
from headwise.experiments.sequence_tasks import Transduction
from headwise.experiments.training import Training

TASK = Transduction(min_len=1, max_tokens=5, vocab_size=11)


class Small(nn.Module):
    """Tokens to scores, with dropout."""

    def __init__(self, dropout_p=0.0):
        super().__init__()
        self.table = nn.Embedding(11, 7)
        self.dropout = nn.Dropout(dropout_p)
        self.out = nn.Linear(7, 11)

    def forward(self, ids):
        return self.out(self.dropout(self.table(ids))).unsqueeze(-2)


def loss(module, batch):
    return loss_sum(module(batch.ids), batch.targets)


def make(recipe, *, seed=0, dropout_p=0.0, batch_of=None):
    torch.manual_seed(seed)
    batch_of = batch_of or (lambda step: TASK.draw(recipe.batch_size, seed=step))
    return Training(Small(dropout_p), recipe, loss=loss, batch_of=batch_of)


def weights_of(training):
    return {name: tensor.clone() for name, tensor in training.module.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_rate_rises_in_a_line_and_falls_as_the_schedule_says():
    cosine = Recipe(steps=12, learning_rate=0.2, warmup_steps=4, final_share=0.1)
    assert [cosine.rate_at(step) for step in range(4)] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    # after the warmup the first step is at the top, the middle one halfway to a tenth, the one after the last there
    assert [cosine.rate_at(step) for step in (4, 8, 12)] == pytest.approx([0.2, 0.11, 0.02])
    root = Recipe(steps=11, learning_rate=0.2, warmup_steps=4, schedule="inverse-sqrt")
    assert [root.rate_at(step) for step in (3, 8, 15)] == pytest.approx([0.2, 0.2 * 2 / 3, 0.1])
    constant = Recipe(steps=11, learning_rate=0.2, warmup_steps=0, schedule="constant")
    assert [constant.rate_at(step) for step in (0, 10)] == [0.2, 0.2]


def test_the_rate_is_that_of_torchs_schedulers_one_after_the_other():
    recipe = Recipe(steps=17, learning_rate=0.2, warmup_steps=5, final_share=0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    rises = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / 5, total_iters=4)
    falls = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12, eta_min=0.02)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [rises, falls], milestones=[5])
    for step in range(17):
        assert recipe.rate_at(step) == pytest.approx(both.get_last_lr()[0], rel=1e-12), step
        optimizer.step()
        both.step()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"label_smoothing": 1.0}, "label_smoothing must be from 0 to below 1; got 1.0"),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1; got 1.0"),
        ({"batch_size": 6, "accumulate": 4}, "accumulate must divide batch_size = 6"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"final_share": 1.5}, "final_share must be from 0 to 1"),
    ],
)
def test_a_recipe_out_of_range_is_refused(numbers, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(**numbers)


def test_steps_are_those_of_a_plain_loop_of_torchs_pieces():
    sizes = {"steps": 5, "batch_size": 6, "warmup_steps": 2}
    recipe = Recipe(learning_rate=0.1, clip_norm=0.3, weight_decay=0.2, betas=(0.7, 0.95), **sizes)
    training = make(recipe)
    records = [training.take_step() for _ in range(5)]

    torch.manual_seed(0)
    plain = Small()
    groups = [
        {"params": [plain.table.weight, plain.out.weight], "weight_decay": 0.2},
        {"params": [plain.out.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.7, 0.95))
    for step in range(5):
        batch = TASK.draw(6, seed=step)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(step)
        mean = functional.cross_entropy(plain(batch.ids).flatten(0, -2), batch.targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        mean.backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
        optimizer.step()
        # the sum over the answers, divided: float32 of some 40 terms, each off by 6e-8 of itself
        assert records[step].loss == pytest.approx(mean.item(), rel=40 * 6e-8)
        assert records[step].gradient_norm == pytest.approx(norm.item(), rel=1e-5)
        assert records[step].clipped == (norm > 0.3)
    assert training.num_clipped == sum(record.clipped for record in records) > 0
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(training.module.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_batch_in_parts_is_the_batch_however_its_answers_are_spread():
    whole, parts = make(Recipe(batch_size=12)), make(Recipe(batch_size=12, accumulate=4))
    first, second = whole.take_step(), parts.take_step()
    assert second.loss == pytest.approx(first.loss, rel=1e-6)
    assert second.gradient_norm == pytest.approx(first.gradient_norm, rel=1e-5)


def test_two_processes_together_are_one():
    """Each rank's gradients, averaged as DDP does, are those of the whole batch."""
    batch = TASK.draw(8, seed=3)
    whole = make(Recipe(batch_size=8, accumulate=2), batch_of=lambda step: batch)
    whole._backward(batch)
    shares = []
    for rank in range(2):
        torch.manual_seed(0)
        recipe = Recipe(batch_size=8, accumulate=2)
        one = Training(Small(), recipe, loss=loss, batch_of=lambda step: batch, rank=rank, world_size=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.distributed, "all_reduce", lambda tensor: None)
            one._backward(batch)
        shares.append([parameter.grad for parameter in one.module.parameters()])
    for parameter, *grads in zip(whole.module.parameters(), *shares, strict=True):
        torch.testing.assert_close(sum(grads) / 2, parameter.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_training_that_is_taken_up_again_is_the_same_to_the_bit(precision):
    recipe = Recipe(batch_size=4, learning_rate=0.05, warmup_steps=3, precision=precision)
    straight = make(recipe, dropout_p=0.3)
    records = [straight.take_step() for _ in range(7)]

    begun = make(recipe, dropout_p=0.3)
    for _ in range(3):
        begun.take_step()
    tensors, numbers = begun.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    again = make(recipe, seed=99, dropout_p=0.3)
    again.restore(tensors, numbers)
    torch.rand(5)
    again.restore(tensors, numbers)
    assert [again.take_step() for _ in range(4)] == records[3:]
    assert same(weights_of(again), weights_of(straight))


def test_the_peak_of_a_step_is_measured_and_changes_nothing():
    """A gradient as large as the table and, for one number a text, next to nothing beside it."""
    recipe = Recipe(batch_size=4, learning_rate=0.05)

    def dropped(module, batch):
        # a sum of the table's entries: its gradient is one number, spread, until it is kept
        return module.dropout(module.table.weight.sum()) + module.out.weight.sum() * 0, batch.num_answers

    watched, plain = make(recipe, dropout_p=0.5), make(recipe, dropout_p=0.5)
    watched.loss = plain.loss = dropped
    torch.manual_seed(5)
    peak = watched.measure_peak()
    gradients = 4 * (11 * 7 + 7 * 11)
    assert gradients <= peak < gradients + 1024
    assert all(parameter.grad is None for parameter in watched.module.parameters())
    watched.loss = plain.loss = loss
    records = [watched.take_step() for _ in range(3)]
    torch.manual_seed(5)
    assert records == [plain.take_step() for _ in range(3)]
    assert same(weights_of(watched), weights_of(plain))


def test_a_state_of_another_module_is_refused():
    training = make(Recipe(batch_size=4))
    training.take_step()
    tensors, numbers = training.state()
    with pytest.raises(ConfigError, match="other tensors"):
        make(Recipe(batch_size=4)).restore({k: v for k, v in tensors.items() if "out.bias" not in k}, numbers)


def test_steps_without_finite_gradients_change_nothing_and_are_stopped():
    def poisoned(module, batch):
        total, count = loss(module, batch)
        return total * math.nan, count

    recipe = Recipe(batch_size=4, max_bad_steps=3)
    training = make(recipe)
    training.loss = poisoned
    before = weights_of(training)
    assert [training.take_step().finite for _ in range(2)] == [False, False]
    assert same(weights_of(training), before) and training.num_bad == 2
    with pytest.raises(TrainingError, match="3 steps in a row had gradients that were not finite, up to step 2"):
        training.take_step()
    training = make(recipe)
    for step in range(6):  # never three in a row
        training.loss = loss if step % 3 == 2 else poisoned
        training.take_step()
    assert training.num_bad == 4


def test_float16_scales_gradients_unscales_them_before_clipping_and_counts_overflows():
    recipe = Recipe(batch_size=4, precision="amp-fp16", learning_rate=0.01, warmup_steps=0)
    training = make(recipe)
    exact = make(Recipe(batch_size=4, learning_rate=0.01, warmup_steps=0))
    exact_norm = exact.take_step().gradient_norm
    # the scale of 65,536 makes no gradient of this module overflow; float16 rounds to 2^-11, some dozen times over
    first = training.take_step()
    assert first.finite and first.gradient_norm == pytest.approx(exact_norm, rel=0.01)
    before, scale = weights_of(training), training.scaler.get_scale()
    training.loss = lambda module, batch: (loss(module, batch)[0] * 1e38, batch.num_answers)
    overflown = training.take_step()
    assert not overflown.finite and not overflown.clipped and training.num_clipped == first.clipped
    assert training.num_bad == 1 and training.scaler.get_scale() == scale / 2
    assert same(weights_of(training), before)


def test_a_step_whose_gradients_are_infinite_is_bad_and_not_clipped(monkeypatch):
    training = make(Recipe(batch_size=4, learning_rate=0.01, warmup_steps=0, clip_norm=0.5))
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(torch.inf))
    record = training.take_step()
    assert record.gradient_norm == torch.inf and not record.finite and not record.clipped
    assert (training.num_bad, training.num_clipped) == (1, 0)


def test_parts_that_no_process_could_share_are_refused():
    with pytest.raises(ConfigError, match="accumulate x processes = 2 x 2; got 6"):
        Training(
            Small(),
            Recipe(batch_size=6, accumulate=2),
            loss=loss,
            batch_of=lambda step: TASK.draw(6, seed=0),
            world_size=2,
        )


def test_answers_places_and_texts_are_counted_apart():
    """Two texts of two places with two answers; by hand: 5 answers, 4 right; 3 places, 2 right; 2 texts, 1 right."""
    targets = torch.tensor([[[0, 1], [2, IGNORED]], [[1, 1], [IGNORED, IGNORED]]])
    scores = torch.zeros(2, 2, 2, 3)
    for place, answer in {(0, 0, 0): 0, (0, 0, 1): 1, (0, 1, 0): 2, (1, 0, 0): 1, (1, 0, 1): 0}.items():
        scores[place][answer] = 1.0
    sums = AnswerSums()
    sums.add(scores, targets)
    right, wrong = math.log(math.e + 2) - 1, math.log(math.e + 2)
    assert sums.metrics() == pytest.approx(
        {"loss": (4 * right + wrong) / 5, "accuracy": 4 / 5, "exact": 2 / 3, "whole": 1 / 2}, rel=1e-6
    )


def test_lengths_fall_into_the_bucket_of_the_first_bound_they_keep():
    names = [bucket_of(length, (10, 20, 40)) for length in (1, 10, 11, 20, 21, 40, 41)]
    assert names == ["<=10", "<=10", "11-20", "11-20", "21-40", "21-40", ">40"]
    assert bucket_of(3, ()) == "all"


def test_examples_can_be_taken_apart():
    examples = TASK.draw(5, seed=0)
    part = examples.take(slice(1, 3))
    assert isinstance(part, Examples) and len(part) == 2
    assert sum(examples.take(slice(row, row + 1)).num_answers for row in range(5)) == examples.num_answers
