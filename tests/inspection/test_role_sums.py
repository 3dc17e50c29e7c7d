"""Roles on synthetic maps with known answers: heads that play them, and heads that only seem to."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from headwise.errors import ModelError
from headwise.inspection.roles.rule import holds
from headwise.inspection.roles.sums import RoleSums
from headwise.inspection.roles.texts import OFFSETS, RoleTexts, draw_repeats, offset_name
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights, ProjectedWeights

TOKENS = 23
SEPARATORS, PUNCTUATION, RARE = (11, 22), (7, 16), (5, 13)
FIRST_COPIES = 10  # tokens 1 to 10 come again from 11 on
IDS = [50, *range(60, 70), *range(60, 70), 51, 52]


def random(seed):
    return torch.Generator().manual_seed(seed)


def marked(indices):
    return torch.tensor([[index in indices for index in range(TOKENS)]])


def text():
    index = torch.arange(TOKENS)
    return RoleTexts(
        ids=torch.tensor([IDS]),
        real=torch.ones(1, TOKENS, dtype=torch.bool),
        places=index.unsqueeze(0),
        separators=marked(SEPARATORS),
        punctuation=marked(PUNCTUATION),
        rare=marked(RARE),
        first_copy=torch.where((index > FIRST_COPIES) & (index <= 2 * FIRST_COPIES), index - FIRST_COPIES, -1)[None],
    )


def sums_of(weights, texts, *, visible=None, first_text=0):
    weights = torch.as_tensor(weights)
    weights = weights.expand(len(texts.ids), -1, -1, -1) if weights.dim() == 4 else weights[None, None]
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if visible is None else visible
    sums = RoleSums(weights.shape[1])
    layer = GivenWeights(weights=weights, visible=visible.expand(len(texts.ids), 1, -1, -1))
    sums.add(layer, texts, first_text=first_text)
    return sums


def one_hot(keys, otherwise):
    """A head whose query i gives all its weight to keys[i]; a query without a key reads another that no role gives."""
    chosen = [otherwise(i) if key is None else key for i, key in enumerate(keys)]
    return torch.nn.functional.one_hot(torch.tensor(chosen), TOKENS).double()


def shifted(offset):
    return [i + offset if 0 <= i + offset < TOKENS else None for i in range(TOKENS)]


def on(members):
    return [None if i in members else members[i % len(members)] for i in range(TOKENS)]


COPIES = range(FIRST_COPIES + 1, 2 * FIRST_COPIES + 1)
PLACES = {  # roles about where a token stands
    "previous token": shifted(-1),
    "next token": shifted(1),
    "offset -5": shifted(-5),
    "offset +3": shifted(3),
    "first token": [None] + [0] * (TOKENS - 1),
}
KINDS = {  # roles about what a token is
    "separator": on(SEPARATORS),
    "punctuation": on(PUNCTUATION),
    "rare word": on(RARE),
    "same token": [i - FIRST_COPIES if i in COPIES else None for i in range(TOKENS)],
    "induction": [i - FIRST_COPIES + 1 if i in COPIES else None for i in range(TOKENS)],
    "duplicate": [i - FIRST_COPIES if i in COPIES else None for i in range(TOKENS)],
}
PLAYERS = PLACES | KINDS
UNTRAINED = torch.full((TOKENS, TOKENS), 1 / TOKENS, dtype=torch.float64)


def player(name):
    return one_hot(PLAYERS[name], otherwise=lambda i: (i + 9) % TOKENS)


def following_tokens(weights, texts):
    """The head that reads the same tokens wherever a shuffle put them."""
    order = texts.places[0]
    return weights[order][:, order]


def judged(name, weights, on_shuffled, untrained=UNTRAINED):
    texts = text()
    found = [
        sums_of(weights, texts),
        sums_of(untrained, texts),
        sums_of(on_shuffled, texts.shuffled(random(0))),
    ]
    score, *nulls = (sums.roles[name].score(0) for sums in found)
    return score, nulls, holds(name, score, tuple(nulls))


@pytest.mark.parametrize("name", PLAYERS)
def test_a_head_that_plays_a_role_scores_1_with_all_its_largest_weights_there(name):
    role = sums_of(player(name), text()).roles[name]
    assert role.score(0) == (1.0, sum(key is not None for key in PLAYERS[name]))
    assert role.num_largest[0] == role.num_queries[0]


@pytest.mark.parametrize("name", PLAYERS)
def test_a_role_holds_for_a_head_that_keeps_to_what_the_role_is_about_when_places_and_tokens_part(name):
    weights, texts = player(name), text().shuffled(random(0))
    keeps = weights if name in PLACES else following_tokens(weights, texts)
    _, nulls, does_hold = judged(name, weights, keeps)
    assert max(null.mean for null in nulls) < 0.3
    assert does_hold


@pytest.mark.parametrize("name", PLAYERS)
def test_a_role_does_not_hold_for_a_head_that_has_the_score_by_the_other_link(name):
    weights, texts = player(name), text().shuffled(random(0))
    seems = following_tokens(weights, texts) if name in PLACES else weights
    score, (_, shuffled), does_hold = judged(name, weights, seems)
    assert score.mean == shuffled.mean == 1.0
    assert not does_hold


@pytest.mark.parametrize("name", PLAYERS)
def test_a_role_does_not_hold_where_an_untrained_head_plays_it(name):
    weights, texts = player(name), text().shuffled(random(0))
    keeps = weights if name in PLACES else following_tokens(weights, texts)
    assert not judged(name, weights, keeps, untrained=weights)[2]


def test_an_untrained_head_scores_its_share_of_the_keys():
    roles = sums_of(UNTRAINED, text()).roles
    for name in PLAYERS:
        num_keys = 2 if name in ("separator", "punctuation", "rare word") else 1
        assert roles[name].score(0).mean == pytest.approx(num_keys / TOKENS, rel=1e-14)
    assert roles["self"].score(0).mean == pytest.approx(1 / TOKENS, rel=1e-14)


def test_a_token_is_itself_in_any_order():
    self_reading = torch.eye(TOKENS, dtype=torch.float64)
    for texts in (text(), text().shuffled(random(0))):
        assert sums_of(self_reading, texts).roles["self"].score(0) == (1.0, TOKENS)
    assert holds(
        "self",
        sums_of(self_reading, text()).roles["self"].score(0),
        (sums_of(UNTRAINED, text()).roles["self"].score(0),),
    )


def test_uniform_is_the_share_of_weight_that_lies_where_a_uniform_head_lays_it():
    assert sums_of(UNTRAINED, text()).roles["uniform"].score(0).mean == pytest.approx(1.0, rel=1e-14)
    # all on one of 23 keys: of that one a uniform head gives 1/23, and of the others it gets nothing back
    assert sums_of(torch.eye(TOKENS), text()).roles["uniform"].score(0).mean == pytest.approx(1 / TOKENS, rel=1e-6)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    weights = causal / causal.sum(dim=-1, keepdim=True).double()
    role = sums_of(weights, text(), visible=causal).roles["uniform"]
    assert role.score(0).mean == pytest.approx(1.0, rel=1e-14)
    assert role.num_queries[0] == TOKENS - 1  # the first sees itself alone


@pytest.mark.parametrize("rows", [TOKENS, 5])  # at a time
def test_the_clearest_pair_is_kept_with_its_text(rows, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", TOKENS * rows)
    weights = torch.full((1, 1, TOKENS, TOKENS), 1 / TOKENS, dtype=torch.float64)
    weights[0, 0, 9] = 0.0
    weights[0, 0, 9, 8], weights[0, 0, 9, 11] = 0.6, 0.4
    role = sums_of(weights, text(), first_text=17)
    assert role.roles["previous token"].best_pair[0].tolist() == [17, 9, 8]
    assert role.roles["previous token"].best_weight[0] == 0.6
    assert role.roles["separator"].best_pair[0].tolist() == [17, 9, 11]
    assert role.roles["separator"].best_weight[0] == 0.4


def test_an_induction_head_and_one_that_reads_the_first_copy_are_told_apart():
    roles = sums_of(player("induction"), text()).roles
    assert roles["duplicate"].score(0).mean == 0.0
    roles = sums_of(player("duplicate"), text()).roles
    assert roles["induction"].score(0).mean == 0.0


def test_a_layer_that_reads_other_tokens_than_it_was_given_is_refused():
    texts = draw_repeats(torch.arange(50), num_texts=1, num_random=7, first_id=None, seed=0)
    with pytest.raises(ModelError, match="1 of 14 tokens; one reads 1 with 23 queries and 23 keys"):
        sums_of(UNTRAINED, texts)


def loop_scores(weights, visible, texts):
    """Every role's (mean weight, queries, share of largest weights) by plain loops over texts, queries and keys."""
    found = {}
    for b in range(len(texts.ids)):
        places = texts.places[b].tolist()
        real = [p for p in range(TOKENS) if texts.real[b, p]]
        for p in real:
            keys = [q for q in real if visible[p, q]]
            if len(keys) < 2:
                continue
            token = places[p]
            largest = max(keys, key=lambda q: weights[b, p, q].item())
            kept = {"previous token": [token - 1], "next token": [token + 1], "self": [token]}
            kept |= {offset_name(offset): [token + offset] for offset in OFFSETS}
            kept["first token"] = [0] if token != 0 else []
            of_role = {name: [q for q in keys if places[q] in tokens] for name, tokens in kept.items()}
            for name, flags in (
                ("separator", texts.separators),
                ("punctuation", texts.punctuation),
                ("rare word", texts.rare),
            ):
                of_role[name] = [] if flags[b, p] else [q for q in keys if flags[b, q]]
            of_role["same token"] = [q for q in keys if q < p and texts.ids[b, q] == texts.ids[b, p]]
            first = texts.first_copy[b, p].item()
            of_role["duplicate"] = [q for q in keys if first >= 0 and q == first]
            of_role["induction"] = [q for q in keys if first >= 0 and q == first + 1]
            for name, its in of_role.items():
                if its:
                    found.setdefault(name, []).append((sum(weights[b, p, q].item() for q in its), largest in its))
            overlap = sum(min(weights[b, p, q].item(), 1 / len(keys)) for q in keys)
            found.setdefault("uniform", []).append((overlap, False))
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("is_shuffled", [True, False])
@pytest.mark.parametrize("block_elements", [10**6, 3 * 3 * TOKENS * 5])
def test_every_score_equals_plain_loops_over_texts_queries_and_keys(causal, is_shuffled, block_elements, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", block_elements)
    heads, batch = 3, 3
    generator = torch.Generator().manual_seed(0)
    texts = text()
    fields = {name: getattr(texts, name).repeat(batch, 1) for name in vars(texts)}
    fields["real"] = torch.arange(TOKENS) < torch.tensor([TOKENS, 17, 2])[:, None]
    texts = RoleTexts(**fields)
    if is_shuffled:
        texts = texts.shuffled(random(1))
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    scores = 3 * torch.randn(batch, heads, TOKENS, TOKENS, generator=generator, dtype=torch.float64)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    sums = sums_of(weights, texts, visible=visible)
    for head in range(heads):
        expected = loop_scores(weights[:, head], visible, texts)
        for name, role in sums.roles.items():
            found = expected.get(name, [])
            mean = sum(weight for weight, _ in found) / len(found) if found else None
            assert role.score(head).num_queries == len(found), name
            assert role.score(head).mean == (None if mean is None else pytest.approx(mean, rel=1e-12)), name
            if name != "uniform":
                assert role.num_largest[head] == sum(is_largest for _, is_largest in found), name


class LargestResult(TorchFunctionMode):
    """Remembers the most numbers that any result holds."""

    num_elements = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.layout == torch.strided:
            self.num_elements = max(self.num_elements, result.numel())
        return result


def test_no_map_is_ever_whole(monkeypatch):
    heads, seq_len, rows = 2, 74, 11
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", heads * seq_len * rows)
    texts = draw_repeats(torch.arange(300), num_texts=1, num_random=seq_len // 2, first_id=None, seed=0)
    q, k = torch.randn(2, 1, heads, seq_len, 3, generator=random(0))
    sums = RoleSums(heads)
    with LargestResult() as largest:
        sums.add(ProjectedWeights(query=q, key=k, scale=1.0, is_causal=True), texts, first_text=0)
    assert sums.roles["induction"].num_queries.tolist() == [seq_len // 2] * heads
    assert largest.num_elements == 2 * heads * seq_len * rows  # where queries see few keys a block has twice as many
