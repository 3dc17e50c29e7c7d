"""How heads differ between two inspections, and how surely their maps say so."""

import math
from dataclasses import replace

import pytest
import torch

from headwise.errors import ModelError
from headwise.inspection.changes import SHARES, head_changes
from headwise.inspection.maps import weights_to_bytes
from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection

LAYERS, HEADS, TOKENS = 2, 3, 11


def draw(seed, *, causal=True, sharpness=2.0):
    scores = sharpness * torch.randn(
        LAYERS, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    if causal:
        scores = scores.masked_fill(~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(dim=-1)


def inspection_of(weights, *, causal=True, tokens=None, **statistics):
    heads = tuple(
        HeadStatistics(
            layer=layer,
            head=head,
            entropy=torch.special.entr(weights[layer, head]).sum(dim=-1).mean().item(),
            normalized_entropy=0.5,
            sparsity=0.25,
            distance=1.0,
            sink_mass=weights[layer, head, :, 0].mean().item(),
            max_weight=0.5,
            roles=(),
            **statistics,
        )
        for layer in range(len(weights))
        for head in range(weights.shape[1])
    )
    maps = tuple(
        AttentionMap(
            layer=head.layer,
            head=head.head,
            num_queries=weights.shape[2],
            num_keys=weights.shape[3],
            weights=weights_to_bytes(weights[head.layer, head.head]).numpy().tobytes(),
        )
        for head in heads
    )
    return Inspection(
        heads=heads,
        maps=maps,
        tokens=tuple(map(str, range(weights.shape[2]))) if tokens is None else tokens,
        num_texts=1,
        num_windows=1,
        num_tokens=weights.shape[2],
        window=weights.shape[2],
        is_causal=causal,
    )


def divergence_of(p, q):
    """Jensen-Shannon by Kullback and Leibler, mean over the rows."""
    mean = (p + q) / 2

    def relative(each):
        return torch.where(each > 0, each * (each / mean).log(), 0.0).sum(dim=-1)

    return ((relative(p) + relative(q)) / 2).mean().item()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sharpness", [0.1, 2.0, 20.0])
def test_a_divergence_is_that_of_the_exact_weights_within_its_error(causal, sharpness):
    first, other = (draw(seed, causal=causal, sharpness=sharpness) for seed in (0, 1))
    changes = head_changes(inspection_of(first, causal=causal), inspection_of(other, causal=causal))
    assert len(changes) == LAYERS * HEADS
    for change in changes:
        exact = divergence_of(first[change.layer, change.head], other[change.layer, change.head])
        assert abs(change.divergence - exact) <= change.divergence_error <= math.log(2)
        # 11 keys: sqrt(11) / 510 = 0.0065 of a row at most, whose root of 1 - cos is 0.0046; 4 * 0.0046 * sqrt(log 2)
        assert change.divergence_error < 0.016


def test_a_divergence_is_at_most_the_squared_hellinger_distance():
    """What the bound rests on, for every share t of a key that the first of two distributions holds."""
    share = torch.linspace(1e-9, 1 - 1e-9, 99_991, dtype=torch.float64)
    shannon = math.log(2) - torch.special.entr(share) - torch.special.entr(1 - share)
    hellinger = 1 - 2 * (share * (1 - share)).sqrt()
    assert (shannon <= hellinger + 1e-15).all()  # both are sums of terms of about 1, rounded


def test_heads_that_changed_most_come_first():
    first = draw(0)
    other = first.clone()
    other[1, 2] = draw(1)[1, 2]
    other[0, 1] = (9 * first[0, 1] + draw(1)[0, 1]) / 10
    changes = head_changes(inspection_of(first), inspection_of(other))
    assert [(change.layer, change.head) for change in changes[:2]] == [(1, 2), (0, 1)]
    assert [change.divergence for change in changes[2:]] == [0.0] * 4
    assert [(change.layer, change.head) for change in changes[2:]] == [(0, 0), (0, 2), (1, 0), (1, 1)]


def test_differences_are_the_other_minus_the_first_of_what_both_have():
    first = inspection_of(draw(0), stable_rank=2.0, variability=0.5)
    other = inspection_of(draw(1), stable_rank=5.0, patch_distance=1.0)
    nan = replace(other.heads[0], max_weight=math.nan)
    changes = head_changes(first, replace(other, heads=(nan, *other.heads[1:])))
    by_place = {(change.layer, change.head): change.differences for change in changes}
    for before, after in zip(first.heads, other.heads, strict=True):
        found = by_place[before.layer, before.head]
        assert found["stable_rank"] == 3.0
        assert found["entropy"] == after.entropy - before.entropy
        assert not {"variability", "patch_distance", "layer", "roles"} & set(found)
    assert "max_weight" not in by_place[0, 0] and "max_weight" in by_place[0, 1]


def test_maps_of_other_tokens_have_no_divergence_and_shares_sort_the_heads():
    first, other = inspection_of(draw(0)), inspection_of(draw(1), tokens=tuple("abcdefghijk"))
    changes = head_changes(first, other)
    assert {(change.divergence, change.divergence_error) for change in changes} == {(None, None)}
    sizes = [max(abs(change.differences[name]) for name in SHARES) for change in changes]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
    assert all(change.divergence is None for change in head_changes(first, replace(first, maps=())))
    cross = replace(first, key_tokens=tuple("ABCDEFGHIJK"))
    assert all(change.divergence is None for change in head_changes(first, cross))


def test_rows_are_scaled_to_the_keys_that_a_map_covers_and_rows_without_weight_left_out():
    first, other = draw(0, causal=False), draw(1, causal=False)
    cut = [each[..., :7, :7].clone() for each in (first, other)]
    cut[0][:, :, 3] = 0.0
    changes = head_changes(*(inspection_of(each, causal=False) for each in cut))
    kept = [0, 1, 2, 4, 5, 6]
    for change in changes:
        rows = [each[change.layer, change.head][kept] for each in cut]
        exact = divergence_of(*(each / each.sum(dim=-1, keepdim=True) for each in rows))
        assert abs(change.divergence - exact) <= change.divergence_error
    empty = inspection_of(torch.zeros(1, 1, 2, 2, dtype=torch.float64))
    assert head_changes(empty, empty)[0].divergence is None


def test_rows_that_a_map_shows_as_empty_count_with_all_that_they_may_be():
    first, other = draw(0, causal=False), draw(1, causal=False)
    for each in (first, other):
        each[:, :, 3:6] *= 1e-7  # the rest lies on a sink
    first[:, :, 3:6, 2:] = 0.0
    other[:, :, 3:6, :2] = 0.0  # no key is shared: log 2
    for change in head_changes(*(inspection_of(each, causal=False) for each in (first, other))):
        rows = [each[change.layer, change.head] for each in (first, other)]
        exact = divergence_of(*(each / each.sum(dim=-1, keepdim=True) for each in rows))
        assert abs(change.divergence - exact) <= change.divergence_error
        assert 3 / 11 * math.log(2) <= change.divergence_error <= math.log(2)


def test_other_heads_are_refused():
    first = inspection_of(draw(0))
    with pytest.raises(ModelError, match="one has 2 layers of 3 heads, the other 1 layers of 3 heads"):
        head_changes(first, inspection_of(draw(0)[:1]))
