"""Count the FLOPs of what really runs: any module or function, however it writes its attention.

A mode watches the operations that a run comes down to. The costs are those of torch's own counter, and those that it
lacks (fused attention on CPU, the fused encoder layer, products with a vector or by group). Beside it an observer reads
the mask of every attention call, so that masked pairs can be left out.
"""

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from headwise.cost.results import FlopCount
from headwise.cost.running.attention_observer import AttentionObserver
from headwise.cost.running.flop_formulas import MISSING_FORMULAS

# Operations of torch that multiply matrices, or may do so, told by a word in their names: those without a formula are
# named. What only sounds alike is left out.
PRODUCT_LIKE = re.compile(
    r"(?:^|_)(?:[a-z]*mm|[a-z]*mv|matmul|v?dot|conv[a-z]*|attention|linear|rnn|lstm|gru|dist|linalg|trilinear)(?:_|\d|$)"
)
SOUNDS_ALIKE = re.compile(r"norm|upsample|cross|check|flatten|convert|_cell")
# Namespaces of operations that are known: torch's own, those that mark the profile, and those that move data about.
TORCH_NAMESPACES = ("aten", "prim", "prims", "profiler", "c10d", "c10d_functional", "_c10d_functional", "fsdp")
COMPILERS = ("torch._dynamo", "torch.nn.attention.flex_attention")  # what compiles has imported one of them


def count_flops(function: Callable[..., object], *args: object, **kwargs: object) -> FlopCount:
    """Run `function(*args, **kwargs)` once and count the FLOPs of its matrix products.

    The run is a real one, in the mode that the module and the gradient switch are in: dropout draws random numbers, and
    what the function changes stays changed. The counts are the same in train, eval, no_grad and inference_mode.

    Args:
        function: a module or any callable.
        *args, **kwargs: what to call it with.

    Returns:
        FlopCount: `dense`, `attended` and `uncounted`, as `FlopCounter.count` says.
    """
    with FlopCounter() as counter:
        function(*args, **kwargs)
    return counter.count


class FlopCounter:
    """Count the FLOPs of everything that runs inside `with FlopCounter() as counter:`; read `counter.count`.

    While it counts, what is compiled runs as it was written, since a compiled kernel hides its products; and torch's
    fused encoder layer stands aside for the plain one (it does so for any observer), which computes the same at every
    real token. The optimizer's products count too where it steps inside.
    """

    def __init__(self) -> None:
        self._products = _ProductCounter()
        self._observer = AttentionObserver()
        self._stack = ExitStack()

    def __enter__(self) -> "FlopCounter":
        self._products, self._observer = _ProductCounter(), AttentionObserver()  # it starts from zero each time
        with ExitStack() as entered:  # unwinds if one of them cannot start
            for context in (_uncompiled(), self._products, self._observer):
                entered.enter_context(context)
            self._stack = entered.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    @property
    def count(self) -> FlopCount:
        """What has run so far, one multiply-add = 2.

        `dense` counts every product in full, with all pairs of queries and keys; headwise's own layers cut none off.
        What runs twice (a checkpoint) counts twice: these are "hardware" FLOPs. `attended` leaves out the pairs that
        the mask given to an attention call forbids (a bool mask, -inf or the smallest number of the dtype in a float
        mask, `is_causal`, FlexAttention's functions). An attention written as plain products hides its mask and stays
        whole in both. `attended` is None where it would mislead: no attention call was seen, a backward pass ran, or a
        mask has no values to read (meta and fake tensors, vmap). Of headwise's own layers it counts what their masks'
        `count_pairs` says; but a query without a key counts on a GPU as one that sees all, as it is computed.

        `uncounted` names operations that ran and may hold products, whose cost is not known: those of other libraries
        and of users, and torch's that look like products by their names. Empty: nothing was missed.
        """
        dense = self._products.total_flops
        masked = self._observer.masked_flops
        return FlopCount(
            dense=dense,
            attended=None if masked is None else dense - masked,
            uncounted=tuple(sorted(self._products.uncounted)),
        )


class _ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the cost of every operation that has a formula, and names those that may need one."""

    supports_higher_order_operators = True  # FlexAttention, torch.cond

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total_flops = 0
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") and not issubclass(kind, FakeTensor) for kind in types):
            return NotImplemented  # a tensor made of tensors (nested, sharded): what it does inside comes here
        kwargs = kwargs or {}
        if func is torch.ops.higher_order.cond:
            return self._run_branch(*args)
        formula = FORMULAS.get(getattr(func, "overloadpacket", func))
        is_ragged = any(isinstance(one, Tensor) and one.is_nested for one in args)  # it has no shape to read
        if formula is None and not is_ragged and isinstance(func, torch._ops.OpOverload) and func.namespace != "prim":
            with self:  # its parts count, if it is made of parts
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None and not is_ragged:
            self.total_flops += formula(*args, **kwargs, out_val=result)
        elif formula is not None or _may_multiply(func):
            self.uncounted.add(str(getattr(func, "_schema", func)).split("(")[0])
        return result

    def _run_branch(self, condition: Any, if_true: Any, if_false: Any, operands: Any) -> Any:
        with self:
            return (if_true if condition else if_false)(*operands)


def _may_multiply(func: Any) -> bool:
    """Tell whether an operation without a formula may hold products."""
    if not isinstance(func, torch._ops.OpOverload):
        return True  # a higher-order operation runs functions out of sight
    if func.namespace not in TORCH_NAMESPACES:
        return True
    name = func._schema.name.split("::")[-1]
    return bool(PRODUCT_LIKE.search(name)) and not SOUNDS_ALIKE.search(name)


def _uncompiled() -> AbstractContextManager[object]:
    """Let compiled functions run as written; where nothing can be compiled, do not import the compiler for it."""
    if any(name in sys.modules for name in COMPILERS):
        return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
    return nullcontext()


def _of_shapes(formula: Callable[..., int]) -> Callable[..., int]:
    """Turn a formula of shapes into one of tensors, as torch's own are."""

    def cost(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        args, kwargs, out_shape = tree_map(
            lambda one: one.shape if isinstance(one, Tensor) else one, (args, kwargs, out_val)
        )
        return formula(*args, out_shape=out_shape, **kwargs)

    return cost


FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    **{operation: _of_shapes(formula) for operation, formula in MISSING_FORMULAS.items()},
}
