import pytest
import torch
from torch.nn import functional

from headwise.convert.fused import fuse, split_fused
from headwise.errors import ConfigError


@pytest.mark.parametrize("shape", [(6, 5), (6,)], ids=["weight", "bias"])
def test_the_three_parts_stand_one_after_another(shape):
    fused = torch.arange(30.0)[: 6 * (shape[-1] if len(shape) > 1 else 1)].reshape(shape)
    query, key, value = split_fused(fused)
    assert torch.equal(query, fused[:2]) and torch.equal(key, fused[2:4]) and torch.equal(value, fused[4:])
    assert torch.equal(fuse(query, key, value), fused)


def test_grouped_heads_have_fewer_keys_and_values_than_queries():
    parts = split_fused(torch.arange(11.0), sizes=(7, 2, 2))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9, 10]]
    assert torch.equal(fuse(*parts), torch.arange(11.0))


def test_the_parts_are_views():
    fused = torch.zeros(6, 5)
    split_fused(fused)[1].fill_(1.0)
    assert fused.sum(1).tolist() == [0, 0, 5, 5, 0, 0]


def test_one_product_with_the_whole_equals_three_with_the_parts():
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(3)]
    biases = [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(3)]
    x = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    together = functional.linear(x, fuse(*parts), fuse(*biases)).chunk(3, dim=-1)
    for computed, weight, bias in zip(together, parts, biases, strict=True):
        # float64 sums of 6 terms of size about 1
        torch.testing.assert_close(computed, functional.linear(x, weight, bias), rtol=0, atol=1e-14)


def test_rows_that_cannot_be_cut_so_are_refused():
    with pytest.raises(ConfigError, match=r"a third of its rows .*got 7 rows \(give sizes"):
        split_fused(torch.zeros(7, 5))
    for sizes in ((3, 3), (3, 3, 2), (8, -1, 0)):
        with pytest.raises(
            ConfigError, match=rf"three whole numbers that add up to the rows of .*, 7; got \({sizes[0]}"
        ):
            split_fused(torch.zeros(7, 5), sizes)


def test_weights_of_different_widths_cannot_be_fused():
    with pytest.raises(ConfigError, match=r"tokens of one width to be fused; got \[\(5,\), \(5,\), \(4,\)\]"):
        fuse(torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2, 4))


@pytest.mark.usefixtures("without_type_checks")
def test_one_number_has_no_rows_and_dtypes_are_not_mixed():
    with pytest.raises(ConfigError, match="a fused weight must have rows to be cut; got a single number"):
        split_fused(torch.tensor(1.0))
    for sizes in ([2.0, 2.0, 2.0], [True, True, 4], 6):
        with pytest.raises(ConfigError, match="sizes must be three whole numbers that add up"):
            split_fused(torch.zeros(6, 5), sizes)
    with pytest.raises(
        ConfigError, match=r"one dtype to be fused; got \[torch.float32, torch.float64, torch.float32\]"
    ):
        fuse(torch.zeros(2, 5), torch.zeros(2, 5).double(), torch.zeros(2, 5))
