import pytest
import torch

from headwise.inspection.roles.positional import ROLE_NAMES, role_weights
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.sums import LayerSums
from headwise.integrations.layer_weights import GivenWeights

TOKENS = 11


def one_hot(keys):
    """A head whose query i gives all its weight to keys[i]."""
    return torch.nn.functional.one_hot(torch.tensor(keys), TOKENS).double()


def scores_of(weights, *, visible=None, separators=(), real=None):
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if visible is None else visible
    real = torch.ones(1, TOKENS, dtype=torch.bool) if real is None else real
    marked = torch.zeros(1, TOKENS, dtype=torch.bool)
    marked[0, list(separators)] = True
    sums = LayerSums(1)
    layer = GivenWeights(weights=weights.view(1, 1, TOKENS, TOKENS), visible=visible.view(1, 1, TOKENS, TOKENS))
    sums.add(layer, TokenKinds(real, marked))
    return {role.name: role for role in sums.to_statistics(0)[0].roles}


EXAMPLES = {
    "previous token": [5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    "next token": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5],
    "first token": [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "self": list(range(TOKENS)),
    "separator": [10] * 10 + [5],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_head_that_plays_one_role_scores_1_there_and_holds_no_other(name):
    roles = scores_of(one_hot(EXAMPLES[name]), separators=[10])
    assert roles[name].score == 1.0
    assert [role.name for role in roles.values() if role.holds] == [name]


def test_the_first_query_has_no_previous_token_and_the_last_no_next():
    block = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.float64) / TOKENS
    found = role_weights(
        block,
        torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool),
        start=0,
        first_token=torch.tensor([0]),
        separators=torch.zeros(1, TOKENS, dtype=torch.bool),
    )
    applies = dict(zip(ROLE_NAMES, found.applies[:, 0, 0].tolist(), strict=True))
    assert applies["previous token"] == [False] + [True] * 10
    assert applies["next token"] == [True] * 10 + [False]
    assert applies["first token"] == [False] + [True] * 10
    assert applies["self"] == [True] * 11
    assert applies["separator"] == [False] * 11


def test_after_left_padding_the_first_token_is_the_first_real_one():
    real = torch.ones(1, TOKENS, dtype=torch.bool)
    real[0, :4] = False
    roles = scores_of(one_hot([4] * 4 + [5] + [4] * 6), real=real, visible=real.expand(TOKENS, TOKENS))
    assert roles["first token"].score == 1.0


def test_a_causal_head_has_no_next_token():
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    roles = scores_of(one_hot([0, *range(10)]), visible=causal)
    assert (roles["next token"].score, roles["next token"].holds) == (None, False)
    assert roles["previous token"].score == 1.0


def test_a_query_without_a_choice_says_nothing_about_the_head():
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    roles = scores_of(one_hot([0] * 11), visible=causal)  # query 0 must read itself
    assert roles["self"].score == 0.0


def test_a_role_that_a_query_has_but_never_plays_scores_0_and_one_that_none_has_is_no_number():
    roles = scores_of(one_hot(EXAMPLES["self"]))
    assert (roles["previous token"].score, roles["separator"].score) == (0.0, None)
    alone = torch.zeros(1, TOKENS, dtype=torch.bool)
    alone[0, 0] = True
    roles = scores_of(one_hot([0] * 11), real=alone)
    assert {role.score for role in roles.values()} == {None}
    assert not any(role.holds for role in roles.values())


def test_several_separators_share_one_role():
    weights = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    weights[:, 3], weights[:, 10], weights[:, 6] = 0.4, 0.3, 0.3
    roles = scores_of(weights, separators=[3, 10])
    assert roles["separator"].score == pytest.approx(0.7)


@pytest.mark.parametrize(("weight", "holds"), [(0.5, True), (0.49, False)])
def test_a_role_holds_from_a_mean_weight_of_one_half(weight, holds):
    weights = weight * one_hot(EXAMPLES["previous token"]) + (1 - weight) * one_hot([7] * 11)
    weights[8] = one_hot(EXAMPLES["previous token"])[8] * weight
    assert scores_of(weights)["previous token"].holds is holds
