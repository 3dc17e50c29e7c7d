"""Count the FLOPs of what really runs: any module or function, however it writes its attention.

torch's own counter watches the operations that a run comes down to, and knows the cost of each. Here it gets the costs
that it lacks (fused attention on CPU, the fused encoder layer, products with a vector or by group), and beside it an
observer that reads the mask of every attention call, so that masked pairs can be left out.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.cost.attention_observer import AttentionObserver
from headwise.cost.results import FlopCount

aten = torch.ops.aten
Shape = Sequence[int]


def count_flops(function: Callable[..., object], *args: object, **kwargs: object) -> FlopCount:
    """Run `function(*args, **kwargs)` once and count the FLOPs of its matrix products.

    The run is a real one, in the mode that the module and the gradient switch are in: dropout draws random numbers, and
    what the function changes stays changed. The counts are the same in train, eval, no_grad and inference_mode.

    Args:
        function: a module or any callable.
        *args, **kwargs: what to call it with.

    Returns:
        FlopCount: `dense` and `attended`, as `FlopCounter.count` says.
    """
    with FlopCounter() as counter:
        function(*args, **kwargs)
    return counter.count


class FlopCounter:
    """Count the FLOPs of everything that runs inside `with FlopCounter() as counter:`; read `counter.count`.

    While it counts, torch's fused encoder layer stands aside for the plain one (it does so for any observer), which
    computes the same at every real token.
    """

    def __init__(self) -> None:
        self._products = FlopCounterMode(display=False, custom_mapping=MISSING_FORMULAS)
        self._observer = AttentionObserver()
        self._stack = ExitStack()

    def __enter__(self) -> "FlopCounter":
        self._observer = AttentionObserver()  # as torch's counter, it starts from zero
        with ExitStack() as entered:  # unwinds if the second cannot start
            entered.enter_context(self._products)
            entered.enter_context(self._observer)
            self._stack = entered.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    @property
    def count(self) -> FlopCount:
        """What has run so far, one multiply-add = 2.

        `dense` counts every product in full, with all pairs of queries and keys; headwise's own layers cut none off.
        `attended` leaves out the pairs that the mask given to an attention call forbids (a bool mask, -inf or the
        smallest number of the dtype in a float mask, `is_causal`). An attention written as plain products hides its
        mask and stays whole in both. `attended` is None where it would mislead: no attention call was seen, a backward
        pass ran, or a mask has no values to read (meta and fake tensors). Of headwise's own layers it counts what their
        masks' `count_pairs` says; but a query without a key counts on a GPU as one that sees all, as it is computed.
        """
        dense = self._products.get_total_flops()
        masked = self._observer.masked_flops
        return FlopCount(dense=dense, attended=None if masked is None else dense - masked)


def _attention_flops(query: Shape, key: Shape, *_: Any, **__: Any) -> int:
    """Scores (query x key) and outputs (weights x value), whose heads this kernel needs as wide as the query's."""
    return 2 * 2 * prod(query) * key[-2]


def _attention_backward_flops(grad_output: Shape, query: Shape, key: Shape, *_: Any, **__: Any) -> int:
    """Scores again, then the gradients of weights, values, queries and keys."""
    return 5 * 2 * prod(query) * key[-2]


def _fused_attention_layer_flops(query: Shape, key: Shape, value: Shape, embed_dim: int, *_: Any, **__: Any) -> int:
    """Four square projections (query and output per query; key and value per key) around the attention."""
    projections = 2 * embed_dim**2 * 2 * (prod(query[:-1]) + prod(key[:-1]))
    return projections + _attention_flops(query, key)


def _fused_encoder_layer_flops(source: Shape, embed_dim: int, *arguments: Any, out_shape: Any = None) -> int:
    """The attention layer, then two feed-forward projections."""
    hidden_dim: int = arguments[12][0]  # rows of the first projection's weight
    feed_forward = 2 * prod(source[:-1]) * 2 * embed_dim * hidden_dim
    return _fused_attention_layer_flops(source, source, source, embed_dim) + feed_forward


def _product_flops(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """A matrix or vector times a matrix or vector: the left's every element meets each column of the right."""
    return 2 * prod(left) * (right[-1] if len(right) > 1 else 1)


def _added_product_flops(_added: Shape, left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    return _product_flops(left, right)


def _grouped_product_flops(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Each row (or column, or contracted slice) belongs to one group; only if both have a group axis, all pair up."""
    num_groups = left[0] if len(left) == len(right) == 3 else 1
    return 2 * num_groups * left[-2] * left[-1] * right[-1]


MISSING_FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    aten._native_multi_head_attention: _fused_attention_layer_flops,
    aten._transformer_encoder_layer_fwd: _fused_encoder_layer_flops,
    aten.mv: _product_flops,
    aten.dot: _product_flops,
    aten._int_mm: _product_flops,
    aten.addmv: _added_product_flops,
    aten.addbmm: _added_product_flops,
    aten._addmm_activation: _added_product_flops,
    aten._grouped_mm: _grouped_product_flops,
}
