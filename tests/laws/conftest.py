"""Inputs and the independent oracle that all laws share, as fixtures: a test folder is never imported from."""

import math
import operator

import pytest
import torch

from headwise.masks import rows, visits
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow
from headwise.masks.tables import Documents
from headwise.ops import decode

IMPLS = ["reference", "sdpa", "blocked", "decode", "flex"]
CANNOT = {
    "sdpa": {"weights", "logsumexp", "softcap", "seed", "second"},
    "blocked": {"weights", "second", "vmap"},
    "decode": {"dropout", "seed", "gradients", "second", "vmap"},
    "flex": {"weights", "dropout", "seed", "gradients", "second", "vmap"},  # here, on CPU
}
DTYPES = [torch.float32, torch.float64]


class Striped(Mask):
    """A mask of the tests alone: the first key is hidden from all, and each head sees every other key."""

    def allows(self, batch, head, query_index, key_index):
        return (key_index > 0) & ((key_index + head) % 2 == 0)


# Each mask as a function of the key length, since padding belongs to a batch (of three rows: one whole, one empty).
MASKS = {
    "none": lambda key_len: None,
    "full": lambda key_len: Full(),
    "causal": lambda key_len: Causal(),
    "window": lambda key_len: SlidingWindow(3),
    "striped by head": lambda key_len: Striped(),
    "not causal": lambda key_len: ~Causal(),
    "longformer": lambda key_len: LocalWindow(2, 1) | GlobalTokens(1),
    "dilated": lambda key_len: Dilated(3, 2),
    "bigbird": lambda key_len: BigBird(num_blocks=3, block_size=2, num_random=1, window_blocks=1, causal=True),
    "packed": lambda key_len: Causal() & Documents(torch.tensor([key_len // 2, key_len // 3])),
    "right padding": lambda key_len: KeyPadding(torch.tensor([key_len, 0, key_len // 2])),
    "left padding": lambda key_len: KeyPadding(
        torch.tensor([key_len, 0, key_len // 2]), side="left", padded_len=key_len
    ),
    "causal and padding": lambda key_len: Causal() & KeyPadding(torch.tensor([key_len, 0, key_len // 2])),
}

TYPICAL = ("none", "causal", "striped by head", "causal and padding")
BY_HEAD = ("striped by head", "bigbird")


def pytest_generate_tests(metafunc):
    """Give `impl` every implementation, and `impl_with_this_and_that` those that can do this and that."""
    for name in metafunc.fixturenames:
        if name == "impl" or name.startswith("impl_with_"):
            wishes = set(name.removeprefix("impl").removeprefix("_with_").split("_and_")) - {""}
            metafunc.parametrize(name, [impl for impl in IMPLS if not wishes & CANNOT.get(impl, set())])


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Cut what is visited into blocks of three tokens, and mix values in bags of three: these streams are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", 3)
        patch.setattr(rows, "OVERHEAD_PAIRS", 0)
        patch.setattr(decode, "BAG", 3)
        patch.setattr(decode, "LEAST_KEYS", 4)
        patch.setattr(decode, "PIECE", 20)
        decode._places.cache_clear()
        visits._plan_parts_once.cache_clear()
        yield
    visits._plan_parts_once.cache_clear()
    decode._places.cache_clear()


@pytest.fixture
def can():
    """Say whether an implementation can do something."""
    return lambda impl, wish: wish not in CANNOT.get(impl, set())


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request):
    return request.param


@pytest.fixture(params=MASKS)
def make_mask(request):
    return MASKS[request.param]


@pytest.fixture(params=TYPICAL)
def make_typical_mask(request):
    """Make one of a few masks that differ as much as masks can: for laws in which the mask plays a minor part."""
    return MASKS[request.param]


@pytest.fixture(params=[name for name in MASKS if name not in BY_HEAD])
def make_mask_alike(request):
    """Make a mask that is the same for all heads."""
    return MASKS[request.param]


@pytest.fixture
def make_inputs():
    """Make query, key and value: batch 3, 6 heads over 2 kv heads, head size 5.

    Values of another size send torch to its math kernel; the tests of single numbers try both.
    """

    def make(
        query_len,
        key_len,
        dtype=torch.float64,
        *,
        batch=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=5,
        v_head_dim=5,
        seed=0,
    ):
        generator = torch.Generator().manual_seed(seed)
        shapes = (
            (batch, num_heads, query_len, head_dim),
            (batch, num_kv_heads, key_len, head_dim),
            (batch, num_kv_heads, key_len, v_head_dim),
        )
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)

    return make


@pytest.fixture
def oracle():
    """Attention written as sums over single numbers: output, weights and logsumexp of nested lists, in float64.

    `bias` and `keeps` are functions of (batch row, head, query, key), counted from 0; `sink` has a number a head.
    """

    def attend(query, key, value, mask, *, scale=None, softcap=None, bias=None, sink=None, keeps=None, dropout_p=0.0):
        num_heads, num_kv_heads = query.shape[1], key.shape[1]
        query_len, key_len, v_head_dim = query.shape[2], key.shape[2], value.shape[3]
        scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
        query, key, value = query.tolist(), key.tolist(), value.tolist()
        outputs, weights, logsumexps = [], [], []
        for b in range(len(query)):
            for h in range(num_heads):
                kv = h * num_kv_heads // num_heads
                for i in range(query_len):
                    exps = [0.0] * key_len
                    for j in range(key_len):
                        if mask is None or bool(mask.allows(b, h, key_len - query_len + i, j)):
                            score = scale * math.fsum(map(operator.mul, query[b][h][i], key[b][kv][j]))
                            if softcap is not None:
                                score = softcap * math.tanh(score / softcap)
                            if bias is not None:
                                score += float(bias(b, h, i, j))
                            exps[j] = math.exp(score)
                    total = math.fsum(exps)
                    logsumexps.append(math.log(total) if total else -math.inf)
                    if sink is not None:
                        total += math.exp(float(sink[h]))
                    row = [x / total if total else 0.0 for x in exps]
                    weights.append(row)
                    kept = [j for j, w in enumerate(row) if w and (keeps is None or keeps(b, h, i, j))]
                    used = [(row[j] / (1 - dropout_p), value[b][kv][j]) for j in kept]
                    outputs.append([math.fsum(w * numbers[d] for w, numbers in used) for d in range(v_head_dim)])
        head_shape = (len(query), num_heads, query_len)
        return (
            torch.tensor(outputs, dtype=torch.float64).reshape(*head_shape, v_head_dim),
            torch.tensor(weights, dtype=torch.float64).reshape(*head_shape, key_len),
            torch.tensor(logsumexps, dtype=torch.float64).reshape(head_shape),
        )

    return attend


@pytest.fixture
def rounding():
    """Bound of the rounding error of attention on inputs of size about 1, from the unit roundoff of the dtype.

    A score is a sum of `head_dim` products of at most about 4 x 4, an output a mean of `key_len` values of at most 4;
    each operation errs by half a unit, and an error `e` of a score changes its weight by the factor `1 + e`. So the
    output errs by about `4 * (2 * head_dim * 16 + key_len + 3)` half units; the sum is taken at its worst.
    """

    def bound(dtype, key_len, head_dim=5):
        return 4 * (2 * head_dim * 16 + key_len + 3) * torch.finfo(dtype).eps / 2

    return bound
