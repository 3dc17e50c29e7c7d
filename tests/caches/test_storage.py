"""A cache in a file is the cache; a file that is not one leaves the cache as it was."""

import pytest
import torch
from safetensors.torch import save_file

from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache
from headwise.errors import ConfigError, OutputError

KINDS = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(40),
    "rolling": lambda: RollingCache(5),
    "rolling with spare slots": lambda: RollingCache(5, spare=3),
    "paged": lambda: PagedCache(3),
    "quantised": lambda: QuantizedCache(GrowingCache(), bits=8),
    "quantised, rolling, 4 bits": lambda: QuantizedCache(RollingCache(5), bits=4),
    "cross": CrossCache,
}


def chunk(num_tokens, batch=2, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, 3, num_tokens, 4, generator=generator).to(dtype) for _ in range(2))


def fill(cache, dtype=torch.float32):
    """Two uneven rows; where the cache can, a token has been taken back."""
    real_tokens = torch.ones(2, 11, dtype=torch.bool)
    real_tokens[1, :2] = False
    cache.update(*chunk(11, dtype=dtype), real_tokens=real_tokens)
    cache.crop([10, 8])
    return cache


def assert_same(one, other):
    assert one.lengths == other.lengths
    left, right = one._hold(), other._hold()
    for a, b in zip(left, right, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_comes_back_and_goes_on_alike(kind, dtype, tmp_path):
    saved, other = ModelCache([fill(KINDS[kind](), dtype)]), ModelCache([KINDS[kind]()])
    path = saved.save(tmp_path / "cache.safetensors")
    other.load(path)
    assert_same(saved.layers[0], other.layers[0])
    if kind == "cross":
        return
    for seed in range(3):  # through the end of a ring
        views = [cache.layers[0].update(*chunk(1 + 2 * seed, dtype=dtype, seed=seed)) for cache in (saved, other)]
        assert views[0].keys.dtype == views[1].keys.dtype == dtype
        assert_same(saved.layers[0], other.layers[0])


def test_positions_are_saved_too(tmp_path):
    saved, other = ModelCache([GrowingCache()]), ModelCache([GrowingCache()])
    saved.layers[0].update(*chunk(3), positions=torch.tensor([[4, 5, 6], [0, 1, 2]]))
    other.load(saved.save(tmp_path / "cache"))
    assert torch.equal(other.layers[0].view().key_positions, torch.tensor([[4, 5, 6], [0, 1, 2]]))


def spoil(how, path, tmp_path):
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no safetensors":
        path.write_bytes(b"\xff" * 100)
    elif how == "foreign":
        save_file({"weight": torch.zeros(3)}, path)
    elif how == "absent":
        path.unlink()
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "another kind":
        ModelCache([fill(GrowingCache())]).save(path)
    elif how == "another setting":
        ModelCache([fill(StaticCache(41))]).save(path)
    elif how == "more layers":
        ModelCache([fill(StaticCache(40)), fill(StaticCache(40))]).save(path)


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "empty",
        "no safetensors",
        "foreign",
        "absent",
        "a folder",
        "another kind",
        "another setting",
        "more layers",
    ],
)
def test_a_file_that_is_none_of_this_cache_is_refused_and_changes_nothing(how, tmp_path):
    path = ModelCache([fill(StaticCache(40))]).save(tmp_path / "cache")
    spoil(how, path, tmp_path)
    cache, twin = (ModelCache([StaticCache(40)]) for _ in range(2))
    for one in (cache, twin):
        one.layers[0].update(*chunk(5, seed=9))
    with pytest.raises(ConfigError) as caught:
        cache.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert_same(cache.layers[0], twin.layers[0])


@pytest.mark.parametrize(
    "change",
    [
        {"0.values": torch.zeros(2, 3, 9, 4)},
        {"0.key_index": torch.zeros(2, 9, dtype=torch.long)},
        {"0.key_index": torch.full((2, 10), 99)},
        {"0.key_index": torch.zeros(2, 10, dtype=torch.int32)},
        {"0.keys": torch.zeros(3, 10, 4)},
        {"0.positions": torch.zeros(2, 3, dtype=torch.long)},
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(change, tmp_path):
    from safetensors import safe_open

    path = ModelCache([fill(StaticCache(40))]).save(tmp_path / "cache")
    with safe_open(path, framework="pt") as file:
        tensors, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file({**tensors, **change}, path, metadata=header)
    cache = ModelCache([StaticCache(40)])
    with pytest.raises(ConfigError, match="fit together"):
        cache.load(path)
    assert cache.lengths == ()


def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path):
    cache = ModelCache([fill(GrowingCache())])
    with pytest.raises(OutputError, match="cannot be written"):
        cache.save(tmp_path / "absent" / "cache")
    with pytest.raises(OutputError, match="cannot be written"):
        cache.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="must have had an update"):
        ModelCache([GrowingCache()]).save(tmp_path / "cache")
