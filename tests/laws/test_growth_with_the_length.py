"""How attention's operations and memory grow with the length, the heads and the mask: from counts, never from times."""

import math

import pytest
import torch

from headwise.config.attention import AttentionConfig
from headwise.cost.flops import attention_flops
from headwise.cost.kv import score_matrix_bytes
from headwise.cost.tracing.trace import trace_step
from headwise.cost.workload import Workload
from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import SlidingWindow
from headwise.masks.sparse import GlobalTokens, LocalWindow
from headwise.nn.multihead import MultiHeadAttention

EMBED = 24


def exponent(function, short, long):
    """Return the p of the c n^p that goes through both points."""
    return math.log(function(long) / function(short)) / math.log(long / short)


def flops(seq, **settings):
    config = AttentionConfig(**{"embed_dim": EMBED, "num_heads": 3, "projection_bias": False} | settings)
    return attention_flops(config, batch=1, query_len=seq, key_len=seq).dense


def traced(seq, *, impl, num_heads=3):
    """Return the bytes kept for backward, and the peak, of one training step of a layer as a GPU would make it."""
    with torch.device("meta"):
        layer, x = MultiHeadAttention(EMBED, num_heads, impl=impl), torch.empty(1, seq, EMBED)
    ledger = trace_step(layer, (x,), Workload(batch=1, seq=seq, optimizer="sgd"))
    return sum(entry.bytes for entry in ledger.entries if entry.kind == "saved"), ledger.bytes_at(ledger.peak)


@pytest.mark.parametrize("num_heads", [1, 3, 8])
def test_projections_grow_with_the_length_and_scores_with_its_square(num_heads):
    for seq in (1, 7, 127, 4001):
        assert flops(seq, num_heads=num_heads) == 2 * (4 * seq * EMBED**2 + 2 * seq**2 * EMBED)
    # 4 n E^2 = 2 n^2 E: below twice the width the projections cost more
    assert flops(2 * EMBED, num_heads=num_heads) == 2 * 2 * (4 * 2 * EMBED * EMBED**2)
    assert exponent(flops, 1, 2) < 1.03
    assert exponent(flops, 2**19, 2**20) > 1.999


def test_a_score_matrix_grows_with_the_square_of_the_length_and_with_the_heads():
    def matrix(seq, num_heads=3):
        return score_matrix_bytes(batch=2, num_heads=num_heads, query_len=seq, key_len=seq, dtype="float32")

    assert exponent(matrix, 127, 4001) == pytest.approx(2, abs=1e-12)
    assert [matrix(127, heads) for heads in (1, 2, 3, 12)] == [heads * matrix(127, 1) for heads in (1, 2, 3, 12)]


def test_what_fused_attention_holds_grows_with_the_length_and_what_eager_holds_with_its_square():
    """Three lengths n, 2n and 4n tell a line and a quadratic apart: f(4n) - 3 f(2n) + 2 f(n) is 6 c n^2."""
    eager, fused = ([traced(seq, impl=impl) for seq in (992, 1984, 3968)] for impl in ("reference", "sdpa"))
    matrix = score_matrix_bytes(batch=1, num_heads=3, query_len=992, key_len=992, dtype="float32")
    for number, matrices in ((0, 1), (1, 3)):  # one is kept; at the peak there are the gradients of two more
        short, middle, long = (step[number] for step in eager)
        assert long - 3 * middle + 2 * short == 6 * matrices * matrix
    (kept, peak), (kept_twice, peak_twice), (kept_four_times, peak_four_times) = fused
    assert kept_four_times - 3 * kept_twice + 2 * kept == 0
    assert math.log2(kept_twice / kept) == pytest.approx(1, abs=1e-3)
    assert peak < matrix and peak_twice <= 2 * peak and peak_four_times <= 2 * peak_twice


def test_scores_that_eager_attention_keeps_are_linear_in_the_heads_and_all_else_is_the_same():
    seq = 1009
    kept = {heads: traced(seq, impl="reference", num_heads=heads)[0] for heads in (1, 2, 3, 8)}
    scores = {
        heads: score_matrix_bytes(batch=1, num_heads=heads, query_len=seq, key_len=seq, dtype="float32")
        for heads in kept
    }
    rest = {kept[heads] - scores[heads] for heads in kept}
    assert len(rest) == 1 and rest.pop() < kept[1] / 5


@pytest.mark.parametrize(
    "mask_of",
    [
        lambda seq: SlidingWindow(64),
        lambda seq: LocalWindow(32, 32),
        lambda seq: LocalWindow(32, 32) | GlobalTokens(4),
        lambda seq: BigBird(num_blocks=seq // 32, block_size=32),
    ],
    ids=["causal window", "local", "longformer", "bigbird"],
)
def test_pairs_of_sparse_masks_grow_with_the_length_alone(mask_of):
    def pairs(seq):
        return mask_of(seq).count_pairs(seq, seq)

    assert exponent(pairs, 8192, 16384) == pytest.approx(1, abs=0.02)
    assert pairs(16384) < 16384**2 / 30
