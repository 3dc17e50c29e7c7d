"""What a cache cannot read is refused in one line of ours, and nothing has changed."""

import jaxtyping
import numpy as np
import pytest
import torch

from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache
from headwise.errors import ConfigError

KINDS = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(20),
    "rolling": lambda: RollingCache(5),
    "paged": lambda: PagedCache(4),
    "8 bits": lambda: QuantizedCache(GrowingCache()),
    "8 bits, paged": lambda: QuantizedCache(PagedCache(4)),
}


@pytest.fixture
def without_type_checks():
    """Let wrong types through to the code, as they come for users, whose calls nothing checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def heads(num_tokens, batch=2, num_heads=3, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, num_heads, num_tokens, 4, generator=generator).to(dtype) for _ in range(2)]


def filled(kind, num_tokens=3):
    cache = kind()
    cache.update(*heads(num_tokens))
    return cache


MASKS = {
    "real_tokens must be a tensor of True and False; got torch.int64": torch.ones(2, 1, dtype=torch.long),
    "real_tokens must be a tensor of True and False; got torch.float32": torch.ones(2, 1),
    "real_tokens must be a tensor of True and False; got [[True], [False]]": [[True], [False]],
    "real_tokens must have shape (2, 1); got (2, 2)": torch.ones(2, 2, dtype=torch.bool),
    "real_tokens must have shape (2, 1); got (1,)": torch.ones(1, dtype=torch.bool),
}
CALLS = {
    **{text: lambda cache, given=given: cache.update(*heads(1), real_tokens=given) for text, given in MASKS.items()},
    "keys and values must be tensors; got [1.0] and": lambda cache: cache.update([1.0], heads(1)[1]),
    "lengths must be whole numbers of at least 0; got 2.5": lambda cache: cache.crop(2.5),
    "lengths must be whole numbers of at least 0; got None": lambda cache: cache.crop(None),
    "lengths must be whole numbers of at least 0; got True": lambda cache: cache.crop(True),
    "lengths must be whole numbers of at least 0; got '12'": lambda cache: cache.crop("12"),
    "lengths must be whole numbers of at least 0; got [1, -1]": lambda cache: cache.crop([1, -1]),
    "lengths must be whole numbers of at least 0; got tensor([1., 2.])": lambda cache: cache.crop(
        torch.ones(2).cumsum(0)
    ),
    "lengths must be one number or one a row, 2; got 3": lambda cache: cache.crop([1, 1, 1]),
    "rows must be a list of whole numbers; got 5": lambda cache: cache.reorder(5),
    "rows must be a list of whole numbers; got tensor(1)": lambda cache: cache.reorder(torch.tensor(1)),
    "rows must be a list of whole numbers; got [0.5]": lambda cache: cache.reorder([0.5]),
    "rows must be a list of whole numbers; got [True, False]": lambda cache: cache.reorder([True, False]),
    "rows must be from 0 to 1; got [2]": lambda cache: cache.reorder([2]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", CALLS)
def test_what_is_no_answer_to_the_question_is_named(kind, text, without_type_checks):
    cache = filled(KINDS[kind])
    before = cache.view()
    with pytest.raises(ConfigError) as caught:
        CALLS[text](cache)
    assert str(caught.value).startswith(text) and "\n" not in str(caught.value)
    after = cache.view()
    assert cache.lengths == (3, 3) and torch.equal(after.keys, before.keys) and torch.equal(after.values, before.values)


@pytest.mark.parametrize("text", MASKS)
def test_an_index_is_asked_of_real_tokens_alone(text, without_type_checks):
    with pytest.raises(ConfigError) as caught:
        filled(GrowingCache).next_index(2, 1, real_tokens=MASKS[text])
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (torch.tensor([0.5]), "positions must be a tensor of whole numbers; got torch.float32"),
        (torch.tensor([True]), "positions must be a tensor of whole numbers; got torch.bool"),
        ([0], "positions must be a tensor of whole numbers; got [0]"),
        (torch.tensor([0, 1]), "positions must have shape (2, 1); got (2,)"),
    ],
)
def test_positions_are_whole_numbers(given, text, without_type_checks):
    cache = GrowingCache()
    with pytest.raises(ConfigError) as caught:
        cache.update(*heads(1), positions=given)
    assert str(caught.value) == text and cache.lengths == ()


@pytest.mark.parametrize("two", [2, np.int64(2), torch.tensor(2), np.array(2)], ids=["int", "numpy", "torch", "array"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_number_may_be_of_any_library(kind, two, without_type_checks):
    cache = filled(KINDS[kind])
    cache.crop(two)
    assert cache.lengths == (2, 2)
    cache.crop([two, np.int32(1)])
    assert cache.lengths == (2, 1)
    cache.reorder(np.array([1, 0, 1]))
    assert cache.lengths == (1, 2, 1)
    cache.crop(np.array([1, 1, 0]))
    assert cache.lengths == (1, 1, 0)


FULL = {
    "static": lambda: StaticCache(4),
    "paged": lambda: PagedCache(2, num_blocks=3),
    "8 bits, static": lambda: QuantizedCache(StaticCache(4)),
    "4 bits, paged": lambda: QuantizedCache(PagedCache(2, num_blocks=3), bits=4),
}


@pytest.mark.parametrize("kind", FULL)
def test_a_first_update_that_is_refused_binds_to_nothing(kind):
    cache = FULL[kind]()
    with pytest.raises(ConfigError, match="to take these tokens"):
        cache.update(*heads(5))
    assert (cache.lengths, cache.num_bytes, cache.allocated_bytes) == ((), 0, 0)
    assert cache.update(*heads(1, batch=3, num_heads=1, dtype=torch.float64)).keys.dtype == torch.float64


@pytest.mark.parametrize("kind", FULL)
def test_an_update_that_is_refused_leaves_the_told_error_alone(kind):
    cache = filled(FULL[kind], 2)
    lost = getattr(cache, "relative_error", 0)
    with pytest.raises(ConfigError, match="to take these tokens"):
        cache.update(*heads(5, seed=1))
    assert getattr(cache, "relative_error", 0) == lost and cache.lengths == (2, 2)


@pytest.mark.parametrize("layers", [5, None, [], [GrowingCache], [GrowingCache(), 3]])
def test_what_are_no_caches_make_no_cache_of_a_model(layers, without_type_checks):
    with pytest.raises(ConfigError, match="layers must be caches, one for each layer of a model; got "):
        ModelCache(layers)


def test_one_cache_serves_one_layer_also_within_another():
    one = GrowingCache()
    for layers in ([one, one], [QuantizedCache(one), QuantizedCache(one)], [one, QuantizedCache(one)]):
        with pytest.raises(ConfigError, match="each layer must have a cache of its own; got one twice"):
            ModelCache(layers)


def test_layers_that_have_had_other_tokens_are_no_model():
    with pytest.raises(ConfigError, match="layers must have had as many tokens; got "):
        ModelCache([GrowingCache(), filled(GrowingCache)])
    assert ModelCache([filled(GrowingCache), filled(lambda: RollingCache(5))]).lengths == (3, 3)


def test_layers_are_cropped_reordered_and_settled_together_or_not_at_all():
    cache = ModelCache([GrowingCache(), RollingCache(5)])
    for layer in cache:
        layer.update(*heads(9))
    with pytest.raises(ConfigError, match="for a ring that has had 9 tokens"):
        cache.crop(4)
    assert [layer.lengths for layer in cache] == [(9, 9), (9, 9)]
    cache.layers[0].crop([3, 9])
    with pytest.raises(ConfigError, match="for a ring that has had 9 tokens"):
        cache.settle()
    assert [layer.lengths for layer in cache] == [(3, 9), (9, 9)]
    cache = ModelCache([GrowingCache(), GrowingCache()])
    cache.layers[0].update(*heads(2))
    with pytest.raises(ConfigError, match="rows must be from 0 to -1"):
        cache.reorder([1])
    assert cache.lengths == (2, 2)
    cache.settle()
    assert cache.lengths == (0, 0)


def test_a_source_of_which_some_layers_know_nothing_is_forgotten():
    cache = ModelCache([CrossCache(), CrossCache()])
    cache.layers[0].update(*heads(2))
    cache.settle()
    assert [layer.lengths for layer in cache] == [(), ()]  # else the first would read a source of no tokens
