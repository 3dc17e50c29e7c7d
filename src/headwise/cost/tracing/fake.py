"""Modules and inputs without numbers: copies on the meta device to be changed, then fake CPU tensors to run."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from headwise.errors import ModelError, UnsupportedError, describe


class EmptyCopies:
    """Makes copies of tensors that have no numbers; what shares memory shares it in the copies too.

    Args:
        device: "meta"; or "cpu" inside a `FakeTensorMode`.
    """

    def __init__(self, device: str):
        self._device = device
        self._copies: dict[int, Tensor] = {}
        self._bases: dict[int, Tensor] = {}
        self._originals: list[Tensor] = []  # kept alive, since they are known by their place in memory

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor, the same one whenever it is asked for."""
        if id(tensor) not in self._copies:
            self._originals.append(tensor)
            empty = self._empty_like(tensor)
            if isinstance(tensor, nn.Parameter):
                empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
            elif tensor.requires_grad:
                empty.requires_grad_()
            self._copies[id(tensor)] = empty
        return self._copies[id(tensor)]

    def _empty_like(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided:
            raise ModelError(f"a traced tensor must be strided; got one of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        if storage._cdata not in self._bases:
            num_elements = storage.nbytes() // tensor.element_size()
            self._bases[storage._cdata] = torch.empty(num_elements, dtype=tensor.dtype, device=self._device)
        base = self._bases[storage._cdata].view(tensor.dtype)
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def copy_to_meta(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the meta device, without gradients; no number is read.

    Raises:
        ModelError: a parameter has no size yet, or the module cannot be copied.
    """
    copies = EmptyCopies("meta")
    memo: dict[int, Any] = {}
    for holder, name, tensor in _tensors(module):
        if nn.parameter.is_lazy(tensor):
            raise ModelError(f"every parameter must have a size; {name} of {holder} is lazy: run the module once first")
        memo[id(tensor)] = copies(tensor)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise ModelError(
            f"a module must be copyable to be traced; copying {type(module).__name__} raised {describe(error)}"
        ) from error


def make_fake(module: nn.Module, inputs: Any) -> Any:
    """Put fake tensors on the CPU in the place of all tensors of a module, and return inputs of such tensors."""
    copies = EmptyCopies("cpu")
    for part in module.modules():
        holders: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        for tensors in holders:
            for name, tensor in list(tensors.items()):
                if isinstance(tensor, Tensor):
                    tensors[name] = copies(tensor)
    return _map_tensors(copies, inputs)


def _tensors(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield every tensor that a part of the module holds, with the class of the part and its name there."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers, vars(part)):
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor):
                    yield type(part).__name__, name, tensor


def _map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Mapping):  # of any class
        return {name: _map_tensors(function, value) for name, value in tree.items()}
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


class FakeKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What fake tensors cannot do by themselves; open it inside a `FakeTensorMode`.

    A grouped product of experts runs in any dtype; torch fakes it in bfloat16 alone. A trained LSTM is refused, since
    torch fakes its workspace as empty.

    Attributes:
        answers: whether a number that is asked of a fake tensor is 1. False: asking is an error.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answers = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default:
            return _grouped_product(*args, **kwargs)
        if func is torch.ops.aten.mkldnn_rnn_layer.default and args[-1]:  # in train mode
            raise UnsupportedError(
                "a traced step must be made of operations that tell what they keep; an LSTM on the CPU keeps a "
                "workspace of a size that oneDNN alone knows: measure it instead"
            )
        if func is torch.ops.aten._local_scalar_dense.default and self.answers:
            return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **kwargs)


def _grouped_product(
    first: Tensor,
    second: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the fake result of `torch._grouped_mm`."""
    shape = [first.shape[-2], second.shape[-1]]
    if first.dim() == second.dim() == 3:
        shape.insert(0, first.shape[0])
    elif first.dim() == second.dim():  # a product for each part of the inner dimension
        assert offs is not None
        shape.insert(0, offs.shape[0])
    return torch.empty(shape, dtype=out_dtype or first.dtype, device="cpu")
