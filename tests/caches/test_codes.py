"""Numbers at the ends of what codes can say, and what is told of what they lost."""

import pytest
import torch

from headwise.caches.model import ModelCache
from headwise.caches.quantized import LARGEST, QuantizedCache, decode, encode
from headwise.caches.slots import GrowingCache

DIM = 6


def heads(num_tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, num_tokens, DIM, generator=generator) for _ in range(2)]


def shown(numbers, bits, dtype=torch.float32):
    numbers = torch.tensor(numbers, dtype=dtype)
    return decode(encode(numbers, bits), bits, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", LARGEST)
def test_numbers_beyond_the_largest_scale_are_shown_as_the_largest(bits, dtype):
    most = 65504.0 * LARGEST[bits]
    found = shown([1e30, -1e30, 0.0, 1.0, 2.0, -most / 2**17], bits, dtype)
    assert found[:3].tolist() == [most, -most, 0.0]
    assert found[3:].isfinite().all() and abs(float(found[4]) - 2.0) <= 2.0 / LARGEST[bits] + most / 2**17


@pytest.mark.parametrize("bits", LARGEST)
def test_what_saturates_is_in_the_error_that_is_told(bits):
    cache = QuantizedCache(GrowingCache(), bits=bits)
    keys, values = heads(2)
    cache.update(keys, values)
    assert cache.relative_error < 0.2
    cache.update(keys * 1e9, values)
    assert cache.relative_error > 0.9 and cache.view().keys.isfinite().all()


@pytest.mark.parametrize("bits", LARGEST)
@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_what_is_no_number_is_shown_as_nan_in_its_half_alone(bits, wrong):
    numbers = [wrong, 1.0, 2.0, 3.0, 0.0, -3.0]
    found = shown(numbers, bits)
    # Its codes are zeros, not what a processor makes of a NaN as a whole number.
    assert torch.equal(*(encode(torch.tensor([*half, *numbers[3:]]), bits)[:-4] for half in (numbers[:3], [0.0] * 3)))
    assert found[:3].isnan().all()
    assert found[3:].tolist() == pytest.approx([3.0, 0.0, -3.0], rel=2.0**-11)  # half a step of float16


@pytest.mark.parametrize("bits", LARGEST)
def test_the_smallest_numbers_are_off_by_half_of_the_least_scale_at_most(bits):
    numbers = torch.tensor([0.0, 1e-7, -2e-7, 1e-30, 3e-8, -1e-7])
    found = shown(numbers.tolist(), bits)
    assert ((found - numbers).abs() <= 2.0**-25).all() and found[2] < 0
    assert shown([0.0] * 6, bits).tolist() == [0.0] * 6


def test_the_error_is_that_of_what_came_in_since_the_cache_was_emptied_or_loaded(tmp_path):
    cache, other = (ModelCache([QuantizedCache(GrowingCache(), bits=4)]) for _ in range(2))
    one = cache.layers[0]
    assert one.relative_error == 0.0
    one.update(*heads(3))
    first = one.relative_error
    assert first > 0
    path = cache.save(tmp_path / "cache")
    other.layers[0].update(*heads(5, seed=1))
    other.load(path)
    assert other.layers[0].relative_error == 0.0
    one.update(*heads(4, seed=2))
    cache.reset()
    assert one.relative_error == 0.0
    one.update(*heads(3))
    assert one.relative_error == first
