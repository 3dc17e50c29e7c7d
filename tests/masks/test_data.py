import jaxtyping
import pytest
import torch
from torch._subclasses import FakeTensorMode

from headwise.errors import ConfigError
from headwise.masks.data import KeyPadding
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal


def keys_seen(mask, batch_size, key_len):
    return [[bool(mask.allows(b, 0, 0, j)) for j in range(key_len)] for b in range(batch_size)]


def test_right_padding_hides_the_keys_after_each_text():
    mask = KeyPadding(torch.tensor([2, 0, 3]))
    assert keys_seen(mask, 3, 3) == [[True, True, False], [False] * 3, [True] * 3]


def test_left_padding_hides_the_keys_before_each_text():
    mask = KeyPadding(torch.tensor([2, 0, 3]), side="left", padded_len=3)
    assert keys_seen(mask, 3, 3) == [[False, True, True], [False] * 3, [True] * 3]


def test_left_padding_to_more_than_the_longest_text_is_told():
    mask = KeyPadding(torch.tensor([2, 1]), side="left", padded_len=4)
    assert keys_seen(mask, 2, 4) == [[False, False, True, True], [False, False, False, True]]


def test_keys_that_a_cache_appends_after_left_padding_are_real():
    mask = KeyPadding(torch.tensor([1, 3]), side="left", padded_len=3)
    assert keys_seen(mask, 2, 5) == [[False, False, True, True, True], [True] * 5]


def test_padding_is_data_and_compares_by_identity():
    lengths = torch.tensor([1, 2])
    mask = KeyPadding(lengths)
    assert mask != KeyPadding(lengths)
    assert {mask: "found"}[mask] == "found"
    assert not mask.is_structural and not (Causal() & mask).is_structural and not (~mask).is_structural
    assert (Causal() & mask).batch_size == (mask | Causal()).batch_size == (~mask).batch_size == 2


def test_pairs_are_counted_exactly_with_padding():
    mask = KeyPadding(torch.tensor([2, 0, 3]))
    assert mask.count_pairs(5, 3, batch_size=3, num_heads=7) == 7 * 5 * (2 + 0 + 3)
    # Rows of a causal square of 3 that end in padding see 1, 2, 2 keys; an empty text none; a full one 1, 2, 3.
    assert (Causal() & mask).count_pairs(3, 3, batch_size=3, num_heads=7) == 7 * (5 + 0 + 6)
    assert (~mask).count_pairs(5, 3, batch_size=3) == 5 * (1 + 3 + 0)


def test_a_count_for_another_batch_is_refused():
    with pytest.raises(ConfigError, match=r"as many rows as the batch; got KeyPadding\(<2 lengths>.* batch of 3"):
        KeyPadding(torch.tensor([1, 2])).count_pairs(2, 2, batch_size=3)


@pytest.mark.parametrize(
    "lengths", [torch.tensor([[1, 2]]), torch.tensor([1.0]), torch.tensor([True]), torch.tensor(3)]
)
def test_lengths_of_the_wrong_kind_are_refused(lengths):
    with pytest.raises(ConfigError, match="lengths must be one whole number a batch row"):
        KeyPadding(lengths)


def test_a_list_of_lengths_has_no_device_and_is_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=r"lengths must be a tensor of shape \(batch,\); got list: \[1, 2\]"):
        KeyPadding([1, 2])
    with pytest.raises(ConfigError, match='side must be "right" or "left"; got \'top\''):
        KeyPadding(torch.tensor([1]), side="top")


def test_negative_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"lengths must not be negative; got \[-1\]"):
        KeyPadding(torch.tensor([-1]))
    with pytest.raises(ConfigError, match="padded_len must be a whole number, at least 0; got -1"):
        KeyPadding(torch.tensor([1]), side="left", padded_len=-1)


def test_left_padding_without_the_length_that_it_pads_to_is_refused():
    """The longest text alone does not tell: [3, 2] in 6 keys would show the first row its padding."""
    with pytest.raises(ConfigError, match=r"padded_len must be given for left padding.*got None"):
        KeyPadding(torch.tensor([3, 2]), side="left")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_longer_than_the_length_it_was_padded_to_is_refused(side):
    with pytest.raises(ConfigError, match=r"at most padded_len, .*got \[3, 5\] and padded_len 4"):
        KeyPadding(torch.tensor([3, 5]), side=side, padded_len=4)


def test_lengths_without_numbers_are_not_looked_at():
    with FakeTensorMode():
        fake = KeyPadding(torch.tensor([3, 2]), side="left", padded_len=6)
    assert fake.batch_size == KeyPadding(torch.tensor([3, 2], device="meta")).batch_size == 2


def test_a_mask_is_on_the_device_of_its_lengths_and_so_is_its_dense_form():
    meta = KeyPadding(torch.tensor([1, 2], device="meta"))
    for mask in (meta, Causal() & meta, meta | Causal(), ~meta):
        assert mask.device == torch.device("meta")
        dense = dense_mask(mask, batch_size=2, num_heads=3, query_len=2, key_len=2)
        assert dense.device == torch.device("meta")
        with pytest.raises(ConfigError, match=r"must hold values for its pairs to be counted.*on the meta device"):
            mask.count_pairs(2, 2, batch_size=2)
    assert Causal().device is None and (~Causal() | Causal()).device is None
    with pytest.raises(ConfigError, match=r"must be on the same device; got KeyPadding.*cpu.*meta"):
        _ = (KeyPadding(torch.tensor([1, 2])) & meta).device


def test_an_empty_batch_is_a_batch():
    assert KeyPadding(torch.tensor([], dtype=torch.int64), side="left", padded_len=0).batch_size == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_lengths_in_a_narrow_dtype_do_not_wrap_around(dtype):
    mask = KeyPadding(torch.tensor([5], dtype=dtype), side="left", padded_len=300)
    assert mask.count_pairs(1, 300) == 5
