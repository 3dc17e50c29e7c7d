"""Memory of attention by blocks grows with the lengths, not with their product: by the recorded bytes, not by time."""

import pytest
import torch

import headwise
from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.sparse import GlobalTokens, LocalWindow
from headwise.masks.visits import FUSED_PAIRS, MAX_STRIP_NUMBERS, PLAIN_PAIRS
from headwise.ops.attention import attention
from headwise.positions.bias import ALiBiBias

NUM_HEADS, HEAD_DIM = 2, 8
CASES = {
    "window": lambda seq: {"mask": SlidingWindow(64)},
    "longformer": lambda seq: {"mask": LocalWindow(32, 32) | GlobalTokens(4)},
    "bigbird": lambda seq: {"mask": BigBird(num_blocks=seq // 64, block_size=64)},
    "ALiBi": lambda seq: {"mask": Causal(), "bias": ALiBiBias(NUM_HEADS)},
    "softcap": lambda seq: {"mask": Causal(), "softcap": 5.0},
    "dropout": lambda seq: {"mask": Causal(), "dropout_p": 0.1},
    "sink": lambda seq: {"mask": Causal(), "sink": torch.zeros(NUM_HEADS)},
}


TILE_BYTES = 4 * max(FUSED_PAIRS, PLAIN_PAIRS)


def peak_beyond_inputs(seq, **keywords):
    """Train one call, and return the most bytes alive beyond query, key, value and the output's gradient."""
    query, key, value = (torch.zeros(1, NUM_HEADS, seq, HEAD_DIM, requires_grad=True) for _ in range(3))
    grad = torch.ones(1, NUM_HEADS, seq, HEAD_DIM)
    attention(query.detach(), key.detach(), value.detach(), impl="blocked", **keywords)  # plans what is visited
    with headwise.track() as ledger:
        attention(query, key, value, impl="blocked", **keywords).output.backward(grad)
    return ledger.bytes_at(ledger.peak) - 4 * grad.nbytes, grad.nbytes


@pytest.mark.parametrize("case", CASES)
def test_memory_is_a_multiple_of_the_data_and_a_few_tiles(case):
    """Twice the length takes twice the memory and a tile at most; all pairs would take 32 MiB a table."""
    (short, _), (long, data) = (peak_beyond_inputs(seq, **CASES[case](seq)) for seq in (1024, 2048))
    assert long <= 2 * short + TILE_BYTES  # of which tiles are the part that does not double
    assert long <= 6 * data + 4 * TILE_BYTES


def test_a_window_takes_no_more_than_its_gradients_and_a_strip():
    """Output and three gradients, the sums of the rows, and the keys, values and their gradients of one strip."""
    beyond, data = peak_beyond_inputs(8192, mask=SlidingWindow(64))
    sums = 2 * data // HEAD_DIM
    assert beyond <= 4 * data + sums + 4 * 4 * MAX_STRIP_NUMBERS * NUM_HEADS
