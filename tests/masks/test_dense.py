import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from headwise.errors import ConfigError
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.dense import dense_mask, flex_mask_mod
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided
from headwise.masks.tables import BlockSparse, Documents, Explicit

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


def test_a_mask_of_other_heads_is_refused():
    with pytest.raises(ConfigError, match="as many as there are query heads; got Explicit"):
        dense_mask(Explicit(torch.ones(2, 5, 7, dtype=torch.bool)), **SIZES)


@pytest.mark.parametrize(
    "mask",
    [
        Full(),
        Causal(),
        SlidingWindow(3),
        ~SlidingWindow(3) | Causal(),
        LocalWindow(2, 1) | GlobalTokens(1),
        Dilated(2, 2) | Strided(3),
        PrefixLM(2),
        BigBird(3, 2),
        BigBird(3, 2, causal=True),
        KeyPadding(torch.tensor([3, 5])),
        Documents(torch.tensor([[2, 3], [4, 0]])),
        Causal() & Documents(torch.tensor([2, 2])),
        Explicit(torch.tensor([[True, False, True, True, False]])),
        Explicit(torch.eye(5, dtype=torch.bool).repeat(2, 3, 1, 1)),
        BlockSparse(torch.tensor([[True, False], [True, True]]), 2),
    ],
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
