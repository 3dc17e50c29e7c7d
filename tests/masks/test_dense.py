import itertools

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.errors import ConfigError
from headwise.masks import dense
from headwise.masks.data import KeyPadding
from headwise.masks.dense import count_allowed, dense_mask, draw, flex_mask_mod
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow

SIZES = {"batch_size": 2, "num_heads": 3, "query_len": 5, "key_len": 7}


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (Full(), (1, 1, 1, 1)),
        (~Full(), (1, 1, 1, 1)),
        (Causal(), (1, 1, 5, 7)),
        (KeyPadding(torch.tensor([3, 7])), (2, 1, 1, 7)),
        (KeyPadding(torch.tensor([3, 7])) & SlidingWindow(2), (2, 1, 5, 7)),
    ],
)
def test_a_dimension_that_the_mask_does_not_look_at_has_size_1(mask, shape):
    assert dense_mask(mask, **SIZES).shape == shape


def test_explicit_indices_replace_the_alignment_and_minus_one_is_never_read():
    query_index = torch.tensor([[4], [0]])
    key_index = torch.tensor([0, -1, 4, 5])
    sizes = {"batch_size": 2, "num_heads": 1, "query_len": 1, "key_len": 4}
    causal = dense_mask(Causal(), **sizes, query_index=query_index, key_index=key_index)
    assert causal[:, 0, 0].tolist() == [[True, False, True, False], [True, False, False, False]]
    full = dense_mask(Full(), **sizes, key_index=key_index)
    assert full.shape == (1, 1, 1, 4)
    assert full[0, 0, 0].tolist() == [True, False, True, True]
    negated = dense_mask(~Causal(), **sizes, query_index=query_index, key_index=key_index)
    assert not negated[..., 1].any()


def test_a_mask_of_another_batch_size_is_refused():
    with pytest.raises(ConfigError, match="as many rows as the batch"):
        dense_mask(KeyPadding(torch.tensor([1, 2, 3])), **SIZES)


def test_counting_in_blocks_of_queries_gives_the_whole(monkeypatch):
    mask = Causal() & KeyPadding(torch.tensor([3, 7]))
    whole = count_allowed(mask, 2, 3, 5, 7)
    monkeypatch.setattr(dense, "COUNT_BLOCK", 2 * 3 * 7 * 2)  # two of the five queries at a time
    assert count_allowed(mask, 2, 3, 5, 7) == whole
    # Five queries at the places 2 to 6 see 3, 4, 5, 6, 7 keys; of a text of 3, always 3.
    assert whole == 3 * (5 * 3 + 25)


@pytest.mark.parametrize("block", [1, 2 * 3 * 7, 5 * 2 * 3 * 7])
def test_counting_holds_no_more_pairs_of_all_rows_and_heads_than_a_block_or_one_query(monkeypatch, block):
    class EachHeadAndRow(Mask):
        def allows(self, batch, head, query_index, key_index):
            return (key_index + head + batch + query_index) % 2 == 0

    sizes = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    monkeypatch.setattr(dense, "COUNT_BLOCK", block)
    with Record():
        counted = count_allowed(EachHeadAndRow(), 2, 3, 5, 7)
    assert max(sizes) == max(block, 2 * 3 * 7)
    assert counted == sum(
        (j + h + b + 2 + i) % 2 == 0 for b, h, i, j in itertools.product(range(2), range(3), range(5), range(7))
    )


@pytest.mark.parametrize(
    "mask", [Full(), Causal(), SlidingWindow(3), ~SlidingWindow(3) | Causal(), KeyPadding(torch.tensor([3, 5]))]
)
@pytest.mark.parametrize(
    "indices",
    [
        {},
        {"query_index": torch.tensor([4, 2, 9])},
        {"key_index": torch.tensor([0, -1, 1, 2, 3])},
        {
            "query_index": torch.tensor([[4, 2, 9], [0, 1, 2]]),
            "key_index": torch.tensor([[0, -1, 1, 2, 3], [3, 4, -1, -1, 0]]),
        },
    ],
)
@pytest.mark.parametrize(("query_len", "key_len"), [(5, 5), (3, 5), (7, 2)])
def test_flex_attention_reads_the_same_mask(mask, indices, query_len, key_len):
    if indices and (query_len, key_len) != (3, 5):
        return
    sizes = {"query_len": query_len, "key_len": key_len}
    mask_mod = flex_mask_mod(mask, **sizes, **indices)

    def with_four_parameters(batch, head, query, key):
        """Torch counts the parameters, which the type checks of these tests hide."""
        return mask_mod(batch, head, query, key)

    from_flex = create_mask(with_four_parameters, 2, 3, query_len, key_len, device="cpu")
    ours = dense_mask(mask, batch_size=2, num_heads=3, **sizes, **indices)
    assert torch.equal(from_flex, ours.expand(2, 3, query_len, key_len))


def test_the_drawing_shows_one_line_a_query():
    assert draw(SlidingWindow(2), 3, 4).splitlines() == ["■■··", "·■■·", "··■■"]
    assert draw(KeyPadding(torch.tensor([1, 2])), 1, 3, batch=1) == "■■·"
