import pytest
import torch

from headwise.inspection.capture.own_attention import observe_own_attention
from headwise.inspection.monitoring.drawn_rows import draw_rows
from headwise.integrations.layer_weights import GivenWeights, ProjectedWeights
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.ops.attention import attention
from headwise.positions.bias import ALiBiBias

REAL = torch.tensor([[1] * 7, [0, 1, 1, 1, 0, 0, 0], [0] * 7]).bool()


def test_every_real_token_is_drawn_once_where_there_are_no_more_than_rows():
    drawn = draw_rows(REAL, 21, seed=0)
    for text, real in enumerate(REAL):
        taken = drawn.index[text][drawn.weight[text] > 0]
        assert sorted(taken.tolist()) == real.nonzero().flatten().tolist()
    assert drawn.weight.unique().tolist() == [0.0, 1.0]


def test_no_more_rows_are_drawn_than_asked_for_but_one_of_each_text():
    assert draw_rows(torch.ones(3, 101, dtype=torch.bool), 17, seed=0).index.shape == (3, 5)
    assert draw_rows(torch.ones(13, 101, dtype=torch.bool), 5, seed=0).index.shape == (13, 1)


def test_the_weights_add_up_to_the_number_of_real_tokens():
    drawn = draw_rows(REAL, 6, seed=0)
    assert drawn.weight.sum(dim=1).tolist() == [7.0, 3.0, 0.0]


def test_sums_over_drawn_queries_are_unbiased():
    values = torch.arange(21.0).view(3, 7).square()
    num_draws = 3000
    estimates = torch.stack(
        [
            (drawn.weight * values.gather(1, drawn.index)).sum()
            for drawn in (draw_rows(REAL, 6, seed=s) for s in range(num_draws))
        ]
    )
    expected = values[REAL].sum()
    # 5 standard errors of the mean of that many draws: missed once in two million choices of seeds
    assert abs(estimates.mean() - expected) < 5 * estimates.std() / num_draws**0.5
    assert estimates.std() > 0


def test_a_draw_repeats_by_its_seed_and_leaves_the_global_random_state():
    before = torch.get_rng_state()
    first, again, other = (draw_rows(REAL, 6, seed=seed).index for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def full(weights):
    blocks = list(weights.blocks())
    return torch.cat([block.weights for block in blocks], 2), torch.cat(
        [block.visible.expand(-1, block.weights.shape[1], -1, -1) for block in blocks], 2
    )


def projected(**settings):
    torch.manual_seed(0)
    q, k = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5)
    return ProjectedWeights(query=q, key=k, scale=0.5, **settings)


def heard(**settings):
    torch.manual_seed(0)
    q, k = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5)
    calls = []
    with observe_own_attention(torch.nn.Identity(), calls.append):
        attention(q, k, k, **settings)
    return calls[0].weights


def odd_rows(index):
    """Let odd queries see every key and even ones the first three."""
    seen = (index % 2 == 1).unsqueeze(-1) | (torch.arange(7) < 3)
    return seen[None, None] if index.dim() == 1 else seen.unsqueeze(1)


PADDING = KeyPadding(torch.tensor([7, 4]))
LAYERS = {
    "plain": projected,
    "causal": lambda: projected(is_causal=True),
    "causal and masked": lambda: projected(is_causal=True, mask=torch.rand(1, 6, 7, 7) < 0.6),
    "one row of a mask for all queries": lambda: projected(mask=REAL[:2, None, None, :]),
    "bias, cap and sink": lambda: projected(bias=torch.randn(2, 6, 7, 7), softcap=2.0, sink=torch.randn(6)),
    "mask on paper": lambda: heard(mask=Causal() & PADDING),
    "bias on paper": lambda: heard(mask=Causal(), bias=ALiBiBias(6)),
    "bias of numbers": lambda: heard(bias=torch.randn(2, 6, 7, 7)),
    "causal and on paper": lambda: projected(is_causal=True, mask=odd_rows),
    "given": lambda: GivenWeights(weights=torch.rand(2, 6, 7, 7), visible=torch.rand(2, 1, 7, 7) < 0.6),
}


@pytest.mark.parametrize("name", LAYERS)
def test_some_rows_of_a_layer_are_those_of_the_whole(name):
    layer = LAYERS[name]()
    index = torch.tensor([[6, 0, 3], [2, 5, 5]])
    weights, visible = full(layer.of_rows(index))
    all_weights, all_visible = full(layer)
    for text in range(2):
        assert torch.equal(visible[text], all_visible[text][:, index[text]])
        # products of other numbers of rows may round otherwise: a few of float32's eps on weights of at most 1
        torch.testing.assert_close(weights[text], all_weights[text][:, index[text]], rtol=0, atol=1e-6)
