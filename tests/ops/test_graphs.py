"""Attention in compiled and exported graphs and on tensors without numbers.

In an interpreter of its own: the type checks that the other tests run with cannot be compiled.
"""

import subprocess
import sys

import pytest

SETUP = """
import torch
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.ops.attention import attention

torch.set_num_threads(1)
query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
padding = KeyPadding(torch.tensor([3, 7]))
"""

CLAIMS = {
    "one graph around a mask that is made inside": """
def run(query, key, lengths):
    right, left = KeyPadding(lengths), KeyPadding(lengths, side="left", padded_len=7)
    return attention(query, key, key, mask=(Causal() & right) | left).output
lengths = torch.tensor([3, 7])
compiled = torch.compile(run, backend="eager", fullgraph=True)
assert torch.equal(compiled(query, key, lengths), run(query, key, lengths))
class Padded(torch.nn.Module):
    def forward(self, query, key, lengths):
        return run(query, key, lengths)
program = torch.export.export(Padded(), (query, key, lengths))
others = torch.tensor([0, 2])
assert torch.equal(program.module()(query, key, others), run(query, key, others))
""",
    "one graph whatever else has been called": """
from torch._dynamo.testing import CompileCounter
count, square = CompileCounter(), torch.randn(2, 4, 6, 8)
def run(query):
    return attention(query, query, query, mask=Causal()).output
compiled = torch.compile(run, backend=count, fullgraph=True)
for length in (3, 4, 5, 6):
    run(square[:, :, :length])
    compiled(square)
assert count.frame_count == 1
""",
    "one graph without a break": """
for mask in (None, SlidingWindow(2), Causal() & padding):
    def run(query, key):
        return attention(query, key, key, mask=mask).output
    torch._dynamo.reset()
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(query, key), run(query, key))
""",
    "one graph of bias, cap, sink and seeded dropout": """
from headwise.config.position import T5Bias
from headwise.positions.bias import ALiBiBias, T5RelativeBias
everything = {"bias": torch.randn(4, 5, 7), "softcap": 2.0, "sink": torch.randn(4), "dropout_p": 0.3, "dropout_seed": 5}
for keywords in (
    everything | {"impl": "reference"},
    everything | {"bias": ALiBiBias(4), "mask": Causal() & padding},
    {"bias": T5RelativeBias(T5Bias(), 4), "sink": torch.randn(4), "mask": SlidingWindow(2), "impl": "sdpa"},
):
    class Attends(torch.nn.Module):
        def forward(self, query, key):
            return attention(query, key, key, **keywords).output
    torch._dynamo.reset()
    run = Attends()
    expected = run(query, key)
    torch.testing.assert_close(torch.compile(run, backend="eager", fullgraph=True)(query, key), expected)
    torch.testing.assert_close(torch.export.export(run, (query, key)).module()(query, key), expected)
""",
    "one exported program for every length": """
from headwise.masks.sparse import LocalWindow
class SelfAttention(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
    def forward(self, x, y=None):
        y = x if y is None else y
        return attention(x, y, y, mask=self.mask).output
length, other = (torch.export.Dim(name, min=2, max=100) for name in ("length", "other"))
longer, shorter = torch.randn(2, 4, 11, 8), torch.randn(2, 4, 3, 8)
for mask in (None, Causal(), SlidingWindow(4), LocalWindow(2, 2)):
    run = SelfAttention(mask)
    program = torch.export.export(run, (query,), dynamic_shapes=({2: length},)).module()
    for x in (longer, shorter):
        torch.testing.assert_close(program(x), run(x))  # of float32
    crossed = torch.export.export(run, (query, longer), dynamic_shapes=({2: length}, {2: other})).module()
    for x, y in ((longer, shorter), (shorter, longer)):
        torch.testing.assert_close(crossed(x, y), run(x, y))
""",
    "the reference where forward derivatives are asked for": """
run = lambda x: attention(x, key, key, mask=Causal()).output
_, slope = torch.func.jvp(run, (query,), (torch.ones_like(query),))
_, expected = torch.func.jvp(
    lambda x: attention(x, key, key, mask=Causal(), impl="reference").output, (query,), (torch.ones_like(query),)
)
torch.testing.assert_close(slope, expected)
""",
    "tensors without numbers": """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode(allow_non_fake_inputs=True) as mode:
    fake_query, fake_key = mode.from_tensor(query), mode.from_tensor(key)
    assert attention(fake_query, fake_key, fake_key, mask=padding).output.shape == query.shape
meta_query, meta_key = query.to("meta"), key.to("meta")
assert attention(meta_query, meta_key, meta_key, mask=Causal()).output.shape == query.shape
""",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_attention_makes(claim):
    finished = subprocess.run(
        [sys.executable, "-c", SETUP + CLAIMS[claim]], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
