"""Which operations autocast casts on a CUDA device, put in place of what it casts on a CPU.

A step that trains on a GPU is traced on a CPU under `torch.autocast("cpu")`. The two lists differ: on CUDA softmax,
norms, `pow`, `exp` and sums are promoted to float32; on a CPU they are not, and many operations are that CUDA leaves
alone. Where both lists say the same (products above all), torch's own kernel runs, with its cache of cast weights.

Source: pytorch 2.13, aten/src/ATen/autocast_mode.h, the AT_FORALL macros, as registered for CUDA in autocast_mode.cpp;
"CUDA Op-Specific Behavior" in torch's documentation of amp. A test compares the groups below with that header. Derived,
not measured.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_iter, tree_map

from headwise.cost.cuda.override import DeviceKind, Override
from headwise.errors import UnsupportedError

LOWER_PRECISION = (
    *("_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc", "convolution", "prelu"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm"),
    *("chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell"),
    *("rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
)
"""Run in autocast's dtype."""

PROMOTE = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    "scatter_add",
)
"""Run in the widest dtype among their inputs."""

SET_DTYPE = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
)
"""Told to give float32 by their own argument `dtype`, where the caller did not choose."""

APPEND_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Replaced by an overload that gives float32."""

BANNED = ("binary_cross_entropy",)
"""Refused: unsafe in a narrow dtype."""

_NO_MODEL_CALLS = ("cudnn_convolution", "cudnn_convolution_transpose")  # CUDA's alone: a CPU cannot trace them

# Every other operation that autocast handles on CUDA runs in float32.


def _find(name: str) -> OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    operation: OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operation


def list_handled(key: str) -> set[str]:
    """List the operations, without "aten::", that torch registers at a dispatch key, "AutocastCUDA" for one."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def list_float32() -> set[str]:
    """List the operations that autocast runs in float32 on CUDA."""
    others = {*LOWER_PRECISION, *PROMOTE, *SET_DTYPE, *APPEND_DTYPE, *BANNED, *_NO_MODEL_CALLS}
    return list_handled("AutocastCUDA") - others


def _is_castable(value: object) -> bool:
    """Whether autocast touches a value: a tensor of floating-point numbers other than float64."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _is_castable(value) else value, values)


def _call_without_autocast(operation: OpOverload, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return operation(*args, **kwargs)


Choose = Callable[[Any], torch.dtype]


def _write_cast(operation: OpOverload, choose_dtype: Choose) -> Callable[..., Any]:
    """Write an override that casts every tensor to one dtype, chosen from the arguments, and runs the operation."""

    def run(kind: DeviceKind, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        dtype = choose_dtype((args, kwargs))
        return _call_without_autocast(operation, _cast(args, dtype), _cast(kwargs, dtype))

    return run


def _narrow(values: Any) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _float32(values: Any) -> torch.dtype:
    return torch.float32


def _widest(values: Any) -> torch.dtype:
    dtypes = {value.dtype for value in tree_iter(values) if isinstance(value, Tensor) and value.is_floating_point()}
    wide = [dtype for dtype in (torch.float64, torch.float32) if dtype in dtypes]
    return wide[0] if wide else torch.get_autocast_dtype("cpu")


def _write_set_dtype(operation: OpOverload) -> Callable[..., Any]:
    """Write an override that asks for a float32 result where nothing was asked for."""
    arguments = [argument.name for argument in operation._schema.arguments]
    place = arguments.index("dtype")

    def run(kind: DeviceKind, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        chosen = args[place] if len(args) > place else kwargs.get("dtype")
        if chosen is None and _is_castable(args[0]):
            args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
        return _call_without_autocast(operation, args, kwargs)

    return run


def _write_append_dtype(operation: OpOverload, with_dtype: OpOverload) -> Callable[..., Any]:
    """Write an override that calls the overload with a dtype, and asks for float32."""
    names = [argument.name for argument in operation._schema.arguments]

    def run(kind: DeviceKind, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not _is_castable(args[0]):
            return _call_without_autocast(operation, args, kwargs)
        named = {**_read_defaults(operation), **dict(zip(names, args, strict=False)), **kwargs}
        return _call_without_autocast(with_dtype, (), {**named, "dtype": torch.float32})

    return run


def _read_defaults(operation: OpOverload) -> dict[str, Any]:
    return {a.name: a.default_value for a in operation._schema.arguments if a.has_default_value()}


def _refuse(kind: DeviceKind, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedError(
        "on CUDA autocast must not meet binary_cross_entropy, whose logarithm of a narrow dtype is unsafe; "
        "use binary_cross_entropy_with_logits, which takes the scores before the sigmoid"
    )


def list_autocast_overrides() -> list[Override]:
    """List an override for every operation that autocast treats one way on CUDA and another on a CPU."""
    on_cpu, on_cuda = list_handled("AutocastCPU"), list_handled("AutocastCUDA")
    runs: dict[str, Callable[..., Any] | None] = {}
    runs |= {name: _write_cast(_find(name), _narrow) for name in LOWER_PRECISION if name not in on_cpu}
    runs |= {name: _write_cast(_find(name), _float32) for name in list_float32() - on_cpu}
    runs |= {name: _write_cast(_find(name), _widest) for name in PROMOTE}
    runs |= {name: _write_set_dtype(_find(name)) for name in SET_DTYPE}
    runs |= {name: _write_append_dtype(_find(name), _find(target)) for name, target in APPEND_DTYPE.items()}
    runs |= dict.fromkeys(BANNED, _refuse)
    runs |= dict.fromkeys(on_cpu - on_cuda)  # CUDA's autocast leaves these alone; what they are made of is still cast
    return [Override(_find(name), "AutocastCPU", runs[name]) for name in sorted(runs)]
