"""Copies without numbers: what is shared stays shared, and nothing of the original is touched."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode

from headwise.cost.tracing.fake import FakeKernels, copy_to_meta, make_fake
from headwise.errors import ModelError


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(6).expand(2, 6))
        self.register_buffer("row", self.table[0])
        self.plain = torch.ones(3)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


def test_ties_views_and_frozen_weights_stay_what_they_are():
    module = Shared()
    copied = copy_to_meta(module)
    make_fake_inside(copied)
    assert copied.head.weight is copied.embed.weight
    assert not copied.frozen.requires_grad
    assert copied.table.stride() == (0, 1)
    assert copied.table.untyped_storage().nbytes() == 6 * 8
    assert copied.row.untyped_storage()._cdata == copied.table.untyped_storage()._cdata
    for tensor in (*copied.parameters(), *copied.buffers(), copied.plain):
        assert isinstance(tensor, FakeTensor)
        assert tensor.device.type == "cpu"
    assert not isinstance(module.embed.weight, FakeTensor)


def make_fake_inside(module, inputs=()):
    with FakeTensorMode():
        return make_fake(module, inputs)


def test_inputs_are_copied_at_any_depth():
    x = torch.ones(3, 5)
    inputs = make_fake_inside(nn.Linear(5, 2), {"x": x, "pair": (x.t(), 3)})
    assert isinstance(inputs["x"], FakeTensor)
    assert inputs["pair"][0].shape == (5, 3)
    assert inputs["pair"][1] == 3
    assert inputs["x"].untyped_storage()._cdata == inputs["pair"][0].untyped_storage()._cdata


def test_a_module_that_cannot_be_copied_is_refused():
    module = nn.Linear(3, 5)
    module.handle = open(__file__, encoding="utf-8")  # noqa: SIM115, PTH123
    with module.handle, pytest.raises(ModelError, match="copying Linear raised TypeError"):
        copy_to_meta(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("first", "second"),
    [((16, 8), (3, 8, 24)), ((8, 16), (16, 24)), ((3, 8, 16), (16, 16)), ((3, 8, 16), (3, 16, 24))],
)
def test_a_grouped_product_is_shaped_as_the_real_one(first, second, dtype):
    offsets = None if len(first) == len(second) == 3 else torch.tensor([5, 8, 16], dtype=torch.int32)
    a, b = torch.ones(first, dtype=dtype), torch.ones(second, dtype=dtype)
    real = torch._grouped_mm(a, b, offs=offsets)
    with FakeTensorMode(allow_non_fake_inputs=True), FakeKernels():
        fake = torch._grouped_mm(a, b, offs=offsets)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("tensor", [torch.ones(()), torch.ones((), dtype=torch.int64)])
def test_a_number_is_told_only_where_that_is_asked_for(tensor):
    with FakeTensorMode() as mode, FakeKernels() as kernels:
        fake = mode.from_tensor(tensor)
        with pytest.raises(Exception, match="_local_scalar_dense"):
            fake.item()
        kernels.answers = True
        assert type(fake.item()) is type(tensor.item())
