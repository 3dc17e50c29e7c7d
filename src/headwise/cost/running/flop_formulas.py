"""What operations cost whose cost torch's own counter does not know: FLOPs from shapes, one multiply-add = 2."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

aten = torch.ops.aten
Shape = Sequence[int]


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


def _recurrent_layer_flops(source: Shape, from_input: Shape, from_state: Shape, *_: Any, **__: Any) -> int:
    """One direction of one layer: both weights meet every token."""
    return 2 * prod(source[:-1]) * (prod(from_input) + prod(from_state))


MISSING_FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    aten._native_multi_head_attention: _fused_attention_layer_flops,
    aten._transformer_encoder_layer_fwd: _fused_encoder_layer_flops,
    aten.addmm_: _added_product_flops,
    aten.baddbmm_: _added_product_flops,
    aten.mv: _product_flops,
    aten.dot: _product_flops,
    aten.vdot: _product_flops,
    aten._int_mm: _product_flops,
    aten.addmv: _added_product_flops,
    aten.addmv_: _added_product_flops,
    aten.addbmm: _added_product_flops,
    aten.addbmm_: _added_product_flops,
    aten._addmm_activation: _added_product_flops,
    aten._grouped_mm: _grouped_product_flops,
    aten.mkldnn_rnn_layer: _recurrent_layer_flops,
}
