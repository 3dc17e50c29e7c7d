"""What is visited: every allowed pair once, and little else."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.masks import rows
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.rows import Sizes
from headwise.masks.sparse import GlobalTokens, LocalWindow, Strided
from headwise.masks.tables import Documents, Explicit
from headwise.masks.visits import plan_parts, plan_visits, visited_share, visits_of

MASKS = [
    Full(),
    Causal(),
    ~Causal(),
    SlidingWindow(5),
    LocalWindow(3, 7) | GlobalTokens(2),
    Strided(4),
    BigBird(num_blocks=3, block_size=2, num_random=1, window_blocks=1),
    Causal() & KeyPadding(torch.tensor([11, 0])),
    Causal() & Documents(torch.tensor([7, 13, 3])),
    Explicit(torch.rand(2, 6, 29, 31, generator=torch.Generator().manual_seed(0)) < 0.1),
]


def plan_in_blocks(mask, sizes, max_pairs, block):
    """Plan with small blocks, whose visits are worth nothing to put together unless they read the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", block)
        patch.setattr(rows, "OVERHEAD_PAIRS", 0)
        return [visit for bundle in plan_visits(mask, sizes, max_pairs) for visit in bundle]


@settings(max_examples=60, deadline=None)
@given(
    mask=st.sampled_from(MASKS),
    query_len=st.integers(1, 29),
    key_len=st.integers(1, 31),
    block=st.sampled_from([2, 3, 8, 64]),
    max_pairs=st.sampled_from([1, 40, 10_000]),
)
def test_every_allowed_pair_is_visited_once_by_its_heads(mask, query_len, key_len, block, max_pairs):
    if isinstance(mask, Explicit):
        query_len, key_len = 29, 31
    sizes = Sizes(2, 6, 3, query_len, key_len)
    visited = torch.zeros(2, 3, query_len, key_len, dtype=torch.int64)
    for visit in plan_in_blocks(mask, sizes, max_pairs, block):
        rows = slice(None) if visit.batch is None else visit.batch
        heads = slice(None) if visit.kv_head is None else visit.kv_head
        for keys in visit.keys:
            visited[rows, heads, slice(*visit.queries), slice(*keys)] += 1
        if visit.is_whole:
            for b in range(2) if visit.batch is None else [visit.batch]:
                for kv in range(3) if visit.kv_head is None else [visit.kv_head]:
                    places = [
                        (h, i, j)
                        for h in (2 * kv, 2 * kv + 1)
                        for i in range(*visit.queries)
                        for keys in visit.keys
                        for j in range(*keys)
                    ]
                    assert all(mask.allows(b, h, key_len - query_len + i, j) for h, i, j in places)
    assert int(visited.max()) <= 1
    for b in range(2):
        for h in range(6):
            for i in range(query_len):
                for j in range(key_len):
                    if mask.allows(b, h, key_len - query_len + i, j):
                        assert visited[b, h // 2, i, j] == 1


def test_a_row_of_blocks_with_a_hole_is_not_taken_whole_with_the_one_before():
    table = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    table[..., 6, 3] = False
    visits = plan_in_blocks(Explicit(table), Sizes(1, 1, 1, 8, 8), 10_000, 4)
    assert [(visit.queries, visit.keys, visit.is_whole) for visit in visits] == [((0, 8), ((0, 8),), False)]


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (SlidingWindow(256), 1.5),
        (LocalWindow(256, 256) | GlobalTokens(16), 1.3),
        (Documents(torch.full((8,), 256)), 1.01),
        (Causal(), 1.2),
        (BigBird(num_blocks=32, block_size=64), 1.01),
    ],
    ids=["window", "longformer", "documents", "causal", "bigbird"],
)
def test_little_is_visited_in_vain(mask, most):
    sizes = Sizes(1, 2, 2, 2048, 2048)
    visits = [visit for bundle in plan_visits(mask, sizes, 2**20) for visit in bundle]
    visited = sum((1 if visit.kv_head is not None else 2) * visit.num_queries * visit.num_keys for visit in visits)
    needed = mask.count_pairs(2048, 2048, num_heads=2)
    assert needed <= visited <= most * needed


def test_heads_that_differ_are_visited_in_bundles_of_one_size():
    bundles = plan_visits(BigBird(num_blocks=32, block_size=64), Sizes(1, 4, 4, 2048, 2048), 2**20)
    assert any(len(bundle) > 1 for bundle in bundles)
    for bundle in bundles:
        assert len({(visit.num_queries, visit.num_keys) for visit in bundle}) == 1


def test_a_structural_mask_is_planned_once():
    sizes, how = Sizes(1, 2, 2, 2048, 2048), {"is_fused": True, "has_bias": False, "head_dim": 8, "learns": True}
    assert plan_parts(SlidingWindow(257), sizes, **how) is plan_parts(SlidingWindow(257), sizes, **how)


def test_a_tile_is_shared_only_where_several_parts_have_it():
    how = {"is_fused": False, "has_bias": False, "head_dim": 8, "learns": True}
    assert plan_parts(Causal(), Sizes(1, 1, 1, 512, 512), **how).shared_tiles == frozenset()
    (shared,) = plan_parts(SlidingWindow(65), Sizes(1, 1, 1, 523, 523), **how).shared_tiles
    assert shared[0] >= 64  # the first query of a part inside reads back so far


def test_a_data_mask_is_planned_once_a_call_and_anew_in_the_next():
    lengths = torch.tensor([523])
    mask, sizes, known = Causal() & KeyPadding(lengths), Sizes(1, 1, 1, 523, 523), {}
    how = {"is_fused": True, "has_bias": False, "head_dim": 8, "learns": True}
    share = visited_share(mask, sizes, known)
    assert plan_parts(mask, sizes, known=known, **how).bundles is next(iter(known.values()))
    mask.right.lengths.fill_(40)
    assert visited_share(mask, sizes, known) == share
    assert visited_share(mask, sizes, {}) < share and plan_parts(mask, sizes, **how).bundles[-1][0].keys == ((0, 64),)


@settings(max_examples=200, deadline=None)
@given(
    mask=st.sampled_from(
        [
            *MASKS[:5],
            SlidingWindow(1),
            LocalWindow(9, 0),
            GlobalTokens(5),
            GlobalTokens(0) | Causal() & ~SlidingWindow(6),
            Causal() & ~SlidingWindow(3) | SlidingWindow(1),
            ~Full(),
        ]
    ),
    query_len=st.integers(1, 29),
    key_len=st.integers(1, 31),
    block=st.sampled_from([1, 2, 3, 8, 64]),
    merges=st.booleans(),
)
def test_what_tokens_and_distances_foretell_is_what_the_layout_shows(mask, query_len, key_len, block, merges):
    sizes = Sizes(2, 6, 3, query_len, key_len)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", block)
        layout = mask.block_layout(block, query_len, key_len, batch_size=2, num_heads=6)
        expected = visits_of(layout, sizes, 40, merges=merges)
        assert plan_visits(mask, sizes, 40, merges=merges) == expected


def test_a_plan_of_tokens_and_distances_needs_no_torch():
    source = """
import sys
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.rows import Sizes
from headwise.masks.visits import plan_parts, visited_share

for mask in (Causal(), SlidingWindow(256)):
    assert plan_parts(mask, Sizes(1, 2, 2, 2048, 2048), is_fused=True, has_bias=False, head_dim=64, learns=True).bundles
    assert 0 < visited_share(mask, Sizes(1, 2, 2, 2048, 2048)) < 1
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_a_visit_holds_no_more_pairs_than_it_may():
    for bundle in plan_visits(Causal(), Sizes(1, 1, 1, 2048, 2048), 2**17):
        assert all(visit.num_queries * visit.num_keys <= 2**17 for visit in bundle)


def test_a_plan_is_made_on_the_cpu_whatever_torchs_default_device_is():
    mask, sizes = BigBird(num_blocks=7, block_size=5), Sizes(1, 2, 2, 35, 35)
    expected = plan_visits(mask, sizes, 2**20)
    with torch.device("meta"):
        assert plan_visits(mask, sizes, 2**20) == expected
