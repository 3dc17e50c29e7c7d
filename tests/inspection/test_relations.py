import pytest
import torch

from headwise.errors import TextError
from headwise.inspection.relations.relation import Relation, RelationSums, require_tokens, to_scores
from headwise.inspection.results import HeadRelation, Inspection, RelationScores
from headwise.inspection.statistics.counted import count_block
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights

NAME = "subject and verb"


def score(weights, relations, *, real=None, null=None, first_text=0):
    batch, num_heads, seq_len, _ = weights.shape
    real = torch.ones(batch, seq_len, dtype=torch.bool) if real is None else real
    layer = GivenWeights(weights=weights, visible=torch.ones(batch, 1, seq_len, seq_len, dtype=torch.bool))
    sums = RelationSums(num_heads, relations)
    for block in layer.blocks():
        sums.add(count_block(block, TokenKinds(real, torch.zeros_like(real))), first_text=first_text)
    return to_scores(relations, [sums], null)


def one_hot(*rows):
    """A head whose query i puts three quarters on key rows[i] and the rest on all keys alike."""
    seq_len = len(rows)
    weights = torch.full((1, 1, seq_len, seq_len), 0.25 / seq_len, dtype=torch.float64)
    weights[0, 0, range(seq_len), rows] += 0.75
    return weights


def inspection_of(*relations):
    return Inspection(
        heads=(), maps=(), tokens=(), num_texts=1, num_windows=1, num_tokens=1, window=1, is_causal=False,
        relations=relations,
    )  # fmt: skip


def test_a_head_follows_the_pairs_whose_first_token_is_strongest_on_the_second(monkeypatch):
    weights = torch.cat([one_hot(1, 2, 3, 4, 0), one_hot(4, 2, 0, 0, 3)], dim=1)
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 2 * weights[:, :, 0].numel())  # 2 queries at a time
    pairs = ((0, 0, 4), (0, 1, 2), (0, 4, 3), (0, 2, 3))
    (result,) = score(weights, [Relation(name=NAME, pairs=pairs)])
    assert (result.name, result.num_pairs, result.best_offset, result.offset_share) == (NAME, 4, 1, 0.5)
    assert [head.share for head in result.heads] == [0.5, 0.75]
    assert [head.weight for head in result.heads] == pytest.approx([2 * 0.75 / 4 + 0.05, 3 * 0.75 / 4 + 0.05])
    assert [(head.layer, head.head, head.null_share) for head in result.heads] == [(0, 0, None), (0, 1, None)]


def test_equal_strongest_weights_share_a_pair():
    uniform = torch.full((1, 1, 5, 5), 0.2, dtype=torch.float64)
    (result,) = score(uniform, [Relation(name=NAME, pairs=((0, 1, 3), (0, 2, 4)))])
    assert result.heads[0].share == pytest.approx(1 / 5)


def test_a_hidden_key_is_never_the_strongest():
    weights = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    (result,) = score(weights, [Relation(name=NAME, pairs=((0, 1, 2),))])
    assert result.heads[0].share == 0


def test_tokens_count_from_a_texts_own_first_and_texts_through_all_batches():
    weights = torch.cat([one_hot(0, 0, 0, 0, 0), one_hot(0, 1, 2, 4, 3)])
    real = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)
    relation = Relation(name=NAME, pairs=((6, 2, 0), (7, 1, 2), (9, 0, 1)))  # text 9 is in another batch
    (result,) = score(weights, [relation], real=real, first_text=6)
    assert result.heads[0].share == pytest.approx(2 / 3)


def test_the_best_offset_is_the_one_of_most_pairs_and_of_several_the_nearest():
    def relation(*offsets):
        return Relation(name=NAME, pairs=tuple((0, 5, 5 + offset) for offset in offsets))

    assert (relation(2, 2, -1).best_offset, relation(2, 2, -1).offset_share) == (2, pytest.approx(2 / 3))
    assert (relation(3, -2, 2).best_offset, relation(3, -2, 2).offset_share) == (-2, pytest.approx(1 / 3))


def test_the_null_is_the_same_heads_share_in_another_inspection():
    relation = Relation(name=NAME, pairs=((0, 0, 4),))
    heads = (HeadRelation(layer=0, head=0, share=0.25, weight=0.5),)
    null = RelationScores(name=NAME, num_pairs=1, best_offset=4, offset_share=1.0, heads=heads)
    (result,) = score(one_hot(4, 0, 0, 0, 0), [relation], null=inspection_of(null))
    assert (result.heads[0].share, result.heads[0].null_share) == (1.0, 0.25)
    with pytest.raises(TextError, match="an inspection with each relation once; it has 'subject and verb' 0 times"):
        score(one_hot(4, 0, 0, 0, 0), [relation], null=inspection_of())
    with pytest.raises(TextError, match="a model with the same 2 heads; it has 1"):
        score(torch.cat([one_hot(1, 0), one_hot(0, 1)], dim=1), [relation_of(0, 1)], null=inspection_of(null))


def test_scores_read_as_the_best_heads_beside_the_offset_and_the_null():
    heads = tuple(
        HeadRelation(layer=1, head=head, share=share, weight=0.1, null_share=null)
        for head, (share, null) in enumerate(
            [(0.25, None), (0.75, 0.125), (0.0, None), (0.1, None), (0.2, 0.0), (0.3, 0.5)]
        )
    )
    result = RelationScores(name=NAME, num_pairs=8, best_offset=-2, offset_share=0.5, heads=heads)
    assert result.to_text().split("\n") == [
        "subject and verb: 8 pairs; always looking 2 tokens before follows 50% of them",
        "  layer 1, head 1: 75% (null 12%)",
        "  layer 1, head 5: 30% (null 50%)",
        "  layer 1, head 0: 25%",
        "  layer 1, head 4: 20% (null 0%)",
        "  layer 1, head 3: 10%",
        "  null: the same head of the model held against, an untrained one by default",
    ]


@pytest.mark.parametrize(
    ("offset", "where"),
    [(1, "1 token after"), (-1, "1 token before"), (3, "3 tokens after"), (0, "at the token itself")],
)
def test_one_pair_and_one_token_are_one(offset, where):
    heads = (HeadRelation(layer=0, head=0, share=1.0, weight=0.5),)
    result = RelationScores(name=NAME, num_pairs=1, best_offset=offset, offset_share=1.0, heads=heads)
    assert result.to_text().split("\n") == [
        f"subject and verb: 1 pair; always looking {where} follows 100% of them",
        "  layer 0, head 0: 100%",
    ]


def relation_of(first, second):
    return Relation(name=NAME, pairs=((0, first, second),))


def test_pairs_that_are_not_there_are_refused():
    with pytest.raises(TextError, match="must have at least one pair"):
        Relation(name=NAME, pairs=())
    with pytest.raises(TextError, match=r"text must be a number from 0 to 1; 'subject and verb' has \(2, 0, 0\)"):
        require_tokens([Relation(name=NAME, pairs=((2, 0, 0),))], [5, 3])
    with pytest.raises(TextError, match=r"from 0 to 2, as text 1 is read; 'subject and verb' has \(1, 0, 3\)"):
        require_tokens([Relation(name=NAME, pairs=((1, 0, 3),))], [5, 3])
