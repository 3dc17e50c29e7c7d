"""Models for a task have the sizes that the task asks for, and arms are of one size where they say so."""

import pytest
import torch

from headwise.errors import ConfigError
from headwise.experiments.models import POSITIONS, recurrent_for, transformer_for
from headwise.experiments.run import make_model, scores_of
from headwise.experiments.sequence_tasks import AssociativeRecall, MultiOffsetCopy
from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import GlobalTokens, LocalWindow

TASK = MultiOffsetCopy(vocab_size=7, seq_len=11, offsets=(1, 2, 5))


def count(model):
    return sum(one.numel() for one in make_model(model).parameters())


@pytest.mark.parametrize("position", POSITIONS)
def test_a_model_answers_every_place_of_a_task_whatever_its_positions(position):
    model = make_model(transformer_for(TASK, embed_dim=12, num_heads=3, num_layers=2, position=position))
    scores = scores_of(model, TASK.draw(3, seed=0), TASK)
    assert scores.shape == (3, 11, 3, 7)


def test_heads_do_not_change_the_number_of_parameters_unless_their_size_stays():
    sizes = {count(transformer_for(MultiOffsetCopy(), num_heads=heads)) for heads in (1, 2, 4, 8, 16, 32, 64)}
    assert sizes == {60_448}
    full = count(transformer_for(MultiOffsetCopy(), num_heads=8, head_dim=64))
    # seven more heads of 64: 3 x 7 x 64 rows of queries, keys and values with their biases, and the output's columns
    assert full - 60_448 == 3 * 7 * 64 * (64 + 1) + 7 * 64 * 64


def test_a_model_without_positions_cannot_tell_orders_of_what_came_before_and_one_with_positions_can():
    """Causal, the last token sees the others as a set where nothing says where they stand."""
    torch.manual_seed(0)
    ids = torch.tensor([[1, 2, 3, 4, 5], [3, 1, 4, 2, 5]])
    task = MultiOffsetCopy(vocab_size=7, seq_len=5, offsets=(1,))
    last = {
        position: make_model(transformer_for(task, embed_dim=12, num_heads=3, position=position))(ids)[:, -1]
        for position in ("none", "learned", "rotary", "alibi")
    }
    torch.testing.assert_close(last["none"][0], last["none"][1], rtol=1e-5, atol=1e-6)
    for position in ("learned", "rotary", "alibi"):
        assert (last[position][0] - last[position][1]).abs().max() > 1e-3


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attends", [False, True])
def test_a_rival_comes_as_close_to_the_parameters_as_a_whole_width_can(cell, attends):
    task = AssociativeRecall(num_pairs=3, seq_len=16, vocab_size=29)
    for target in (1000, 5003, 20_011):
        config = recurrent_for(task, cell, num_parameters=target, attends=attends)
        off = abs(count(config) - target)
        for width in (config.embed_dim - 1, config.embed_dim + 1):
            assert abs(count(recurrent_for(task, cell, embed_dim=width, attends=attends)) - target) >= off


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recurrent_for(TASK, "gru"), "one of them"),
        (lambda: recurrent_for(TASK, "gru", embed_dim=3, num_parameters=100), "one of them"),
        (lambda: transformer_for(TASK, num_layers=0), "num_layers"),
        (lambda: transformer_for(TASK, embed_dim=10, num_heads=3), "multiple of num_heads"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("full", Full()),
        ("window:3", SlidingWindow(3)),
        ("longformer:4:2 & causal", (LocalWindow(2, 2) | GlobalTokens(2)) & Causal()),
        ("bigbird:4", BigBird(num_blocks=3, block_size=4)),
    ],
)
def test_a_mask_given_as_text_is_made_for_the_longest_text(text, mask):
    model = transformer_for(TASK, embed_dim=12, num_heads=3, mask=text)
    found = model.blocks[0].attention.mask
    expected = transformer_for(TASK, embed_dim=12, num_heads=3, mask=mask).blocks[0].attention.mask
    for query in range(11):
        assert [found.allows(0, 0, query, key) for key in range(11)] == [
            expected.allows(0, 0, query, key) for key in range(11)
        ]
    with pytest.raises(ConfigError, match="mask must be full, causal"):
        transformer_for(TASK, embed_dim=12, num_heads=3, mask="winow:3")


def test_sinusoids_are_as_strong_as_a_learned_table_at_the_start():
    torch.manual_seed(0)
    learned = make_model(transformer_for(TASK, position="learned", max_positions=512)).body.positions.table
    config = transformer_for(TASK, position="sinusoidal")
    sines = config.sinusoid_scale * make_model(config).body.positions(torch.arange(512))
    # 32,768 draws of a normal: their root mean square is off by 1 / sqrt(2 * 32,768) = 0.4 %, at one standard error
    assert float(learned.detach().square().mean().sqrt()) == pytest.approx(
        float(sines.square().mean().sqrt()), rel=0.02
    )


def test_buckets_of_distances_lie_on_the_side_that_the_mask_lets_read():
    for mask, is_bidirectional in ((None, False), ("window:3", False), ("full", True)):
        bias = transformer_for(TASK, embed_dim=12, num_heads=3, position="t5", mask=mask).blocks[0].attention.position
        assert (bias.is_bidirectional, bias.max_distance) == (is_bidirectional, 32)
    far = transformer_for(TASK, embed_dim=12, num_heads=3, position="t5", max_positions=512)
    assert far.blocks[0].attention.position.max_distance == 128
