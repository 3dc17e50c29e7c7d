"""From the figure of a message to the sizes of the tensor, and from a size to batches and lengths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.cost.heap import segment_bytes
from headwise.cost.oom.pairs import find_pairs, tensor_ranges
from headwise.cost.oom.patterns import PROBE_BATCH, PROBE_SEQ, learn_pattern
from headwise.cost.oom.priors import likely_batches, likely_seqs, other_batches
from headwise.cost.oom.results import OomMessage

MIB, GIB = 2**20, 2**30
SCORES = learn_pattern((PROBE_BATCH, 12, PROBE_SEQ, PROBE_SEQ), "float32")


def message(low, high, *, is_rounded_up=True, backend="cuda", **figures):
    return OomMessage(
        backend=backend,
        wording="test",
        requested_text=None,
        requested_low_bytes=low,
        requested_high_bytes=high,
        is_rounded_up=is_rounded_up,
        **figures,
    )


@pytest.mark.parametrize(
    ("low", "high", "ranges"),
    [
        (2 * MIB, 2 * MIB, ((1, MIB),)),
        (20 * MIB, 20 * MIB, ((MIB + 1, 10 * MIB - 512), (18 * MIB + 1, 20 * MIB))),
        (10 * MIB, 10 * MIB, ((10 * MIB - 511, 10 * MIB),)),
        (6 * GIB, 6 * GIB, ((6 * GIB - 2 * MIB + 1, 6 * GIB),)),
        (6 * GIB - 3 * MIB, 6 * GIB + 3 * MIB, ((6 * GIB - 4 * MIB + 1, 6 * GIB + 2 * MIB),)),
    ],
)
def test_a_figure_is_a_segment_and_a_segment_holds_tensors_of_these_sizes(low, high, ranges):
    assert tensor_ranges(message(low, high)) == ranges


@given(size=st.integers(1, 2**34), width=st.integers(0, 16 * MIB))
def test_every_tensor_is_among_the_sizes_of_the_segment_that_is_asked_for_it(size, width):
    asked = segment_bytes(size)
    ranges = tensor_ranges(message(asked - width // 2, asked + width // 2))
    assert any(low <= size <= high for low, high in ranges)
    for low, high in ranges:
        for end in (low, high):
            assert asked - width // 2 <= segment_bytes(end) <= asked + width // 2


def test_an_exact_figure_is_the_size():
    assert tensor_ranges(message(1000, 1000, is_rounded_up=False)) == ((1000, 1000),)


def test_metal_rounds_up_to_pages():
    assert tensor_ranges(message(3 * GIB, 3 * GIB, backend="mps")) == ((3 * GIB - 16 * 1024 + 1, 3 * GIB),)


def test_a_figure_that_is_no_segment_was_rounded_as_torch_1_0_did():
    assert tensor_ranges(message(3 * MIB, 3 * MIB)) == ((3 * MIB - 128 * 1024 + 1, 3 * MIB),)


@pytest.mark.parametrize("figures", [(None, None), (0, 0), (-5, 0), (2**63, 2**64)])
def test_no_size_at_all_is_no_range(figures):
    assert tensor_ranges(message(*figures, is_rounded_up=False)) == ()


def test_an_inverted_range_is_turned():
    assert tensor_ranges(message(9, 3, is_rounded_up=False)) == ((3, 9),)


def test_the_pairs_of_six_gib_of_twelve_heads_are_those_that_people_use():
    pairs = find_pairs(SCORES, ((6 * GIB - 2 * MIB + 1, 6 * GIB),), longest=512)
    found = [(pair.batch, pair.seq) for pair in pairs]
    assert {(32, 2048), (128, 1024), (8, 4096), (512, 512), (2, 8192)} == set(found[:5])
    assert len(found) == len(set(found))
    priors = [pair.prior for pair in pairs]
    assert priors == sorted(priors, reverse=True)


@given(batch=st.integers(1, 64), seq=st.integers(64, 8192), known=st.sampled_from(["nothing", "batch", "seq", "both"]))
def test_the_true_pair_is_found_whatever_is_known_and_what_is_known_is_kept(batch, seq, known):
    size = SCORES.bytes_at(batch, seq)
    ranges = ((size, size),)
    told = {"batch": batch if known in ("batch", "both") else None, "seq": seq if known in ("seq", "both") else None}
    pairs = find_pairs(SCORES, ranges, **told)
    assert (batch, seq) in [(pair.batch, pair.seq) for pair in pairs]
    for pair in pairs:
        assert SCORES.bytes_at(pair.batch, pair.seq) == size
        assert told["batch"] in (None, pair.batch)
        assert told["seq"] in (None, pair.seq)


LOGITS = learn_pattern((PROBE_BATCH, PROBE_SEQ, 50_257), "float32")


@pytest.mark.parametrize(
    ("batch", "seq"),
    [(100, 384), (150, 333), (250, 128), (1000, 64), (5000, 37), (66, 500), (83, 512), (700, 100), (713, 128)],
)
@pytest.mark.parametrize("pattern", [SCORES, LOGITS], ids=["scores", "logits"])
def test_a_round_batch_at_any_length_and_any_batch_at_a_round_length_are_found(pattern, batch, seq):
    size = pattern.bytes_at(batch, seq)
    for width in (0, size // 500):
        pairs = find_pairs(pattern, ((size - width, size + width),), limit=10_000)
        assert (batch, seq) in [(pair.batch, pair.seq) for pair in pairs]


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 512), seq=st.integers(64, 4096))
def test_from_an_exact_size_any_batch_up_to_512_is_found(batch, seq):
    """A size in bytes, as a CPU says it, has few divisors."""
    for pattern in (SCORES, LOGITS):
        size = pattern.bytes_at(batch, seq)
        assert (batch, seq) in [(pair.batch, pair.seq) for pair in find_pairs(pattern, ((size, size),))]


@pytest.mark.parametrize(("low", "high"), [(1, 2**62), (2**30, 2**32), (2**62, 2**62), (4, 4)])
def test_however_wide_a_range_is_few_pairs_are_looked_at(low, high):
    looked_at = 0

    class Counting(type(LOGITS)):
        def bytes_at(self, batch, seq):
            nonlocal looked_at
            looked_at += 1
            return super().bytes_at(batch, seq)

    for pattern in (SCORES, LOGITS):
        assert len(find_pairs(Counting(pattern.dims, pattern.dtype), ((low, high),))) <= 400
    # At most 4 lengths for each batch and 3 batches for each length; any batch only where few pairs have the size.
    num_batches = len(likely_batches()) + (len(other_batches()) if high < 2 * low else 0)
    assert looked_at <= 2 * (4 * num_batches + 3 * len(likely_seqs(None)) + 1)


def test_where_one_of_the_two_is_known_many_of_the_other_are_tried():
    size = LOGITS.bytes_at(44, 830)
    ranges = ((size - size // 100, size + size // 100),)  # 8 lengths to either side
    seqs = {pair.seq for pair in find_pairs(LOGITS, ranges, batch=44)}
    assert set(range(823, 838)) <= seqs
    size = LOGITS.bytes_at(830, 44)
    ranges = ((size - size // 100, size + size // 100),)
    assert set(range(823, 838)) <= {pair.batch for pair in find_pairs(LOGITS, ranges, seq=44)}


def test_no_pair_has_more_tokens_than_a_step_may_have():
    pooled = learn_pattern((PROBE_BATCH, 768), "float32")
    size = pooled.bytes_at(697_344, 1)
    assert [pair.batch for pair in find_pairs(pooled, ((size, size),), seq=512)] == [697_344]
    assert find_pairs(pooled, ((size, size),), seq=2**31 - 1) == []


def test_a_size_that_depends_on_one_of_the_two_says_nothing_of_the_other():
    table = learn_pattern((1, PROBE_SEQ, 64), "float32")
    assert [(pair.batch, pair.seq) for pair in find_pairs(table, ((256 * 2048, 256 * 2048),))] == [(None, 2048)]
    pooled = learn_pattern((PROBE_BATCH, 768), "float32")
    assert [(pair.batch, pair.seq) for pair in find_pairs(pooled, ((3072 * 32, 3072 * 32),))] == [(32, None)]
    weight = learn_pattern((768, 768), "float32")
    assert [(pair.batch, pair.seq, pair.prior) for pair in find_pairs(weight, ((2**21, 2**22),))] == [(None, None, 1.0)]
    assert find_pairs(weight, ((2**22, 2**23),)) == []
