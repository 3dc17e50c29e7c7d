"""What `scaled_dot_product_attention` does on a CUDA device, kernel by kernel, for tensors that are traced on a CPU.

torch chooses the kernel from the device that it runs on, and has none of CUDA's on a CPU. But each kernel is an
operation of its own, with a formula for its backward and a rule for the shapes of its results; so calling that
operation on fake tensors gives what the kernel allocates and what autograd keeps.

Source: pytorch 2.13, aten/src/ATen/native/transformers/attention.cpp (what happens before and after a kernel) and
sdp_utils_cpp.h (which inputs no fused kernel takes). Derived, not measured.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headwise.cost.cuda.override import DeviceKind, Override
from headwise.errors import UnsupportedError
from headwise.kernels import MaskForm, SdpaCase, sdpa_kernel

aten = torch.ops.aten

FLASH_ALIGNMENT = 8
"""The flash kernel's head size is a multiple of this; torch pads query, key and value to it."""

EFFICIENT_MASK_ALIGNMENT = 8
"""The memory-efficient kernel loads a mask in steps of so many elements; torch pads its rows to it."""


def attend_on_cuda(
    kind: DeviceKind,
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run the kernel that a CUDA device would run. The arguments are those of `F.scaled_dot_product_attention`."""
    has_numbers = query.numel() and key.numel() and value.numel()
    is_wrong = {query.dtype} != {key.dtype, value.dtype} or not _is_mask(attn_mask, query.dtype)
    if is_wrong or not has_numbers:  # torch refuses the one, and chooses no kernel for the other
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    kernel = choose_cuda_kernel(
        kind, query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, enable_gqa=enable_gqa
    )
    mask = _as_bias(attn_mask, query.dtype)
    keeps_logsumexp = _trains(query, key, value)
    results: tuple[Tensor, ...]
    if kernel == "cudnn":
        results = aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keeps_logsumexp, dropout_p, is_causal, scale=scale
        )
    elif kernel == "flash":
        head_dim = query.shape[-1]
        scale = 1 / math.sqrt(head_dim) if scale is None else scale  # of the heads as they came, not as padded
        query, key, value = (_pad_last_dim(x, FLASH_ALIGNMENT) for x in (query, key, value))
        results = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        return results[0] if query.shape[-1] == head_dim else results[0][..., :head_dim]
    elif kernel == "efficient":
        if mask is not None:
            mask = _align_mask(mask).expand(*query.shape[:3], key.shape[2])
        results = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, keeps_logsumexp, dropout_p, is_causal, scale=scale
        )
    else:
        results = aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return results[0]


def choose_cuda_kernel(
    kind: DeviceKind,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    *,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """Name the kernel of a call: "cudnn", "flash", "efficient" or "math".

    Raises:
        UnsupportedError: of the kernels that `torch.nn.attention.sdpa_kernel` allows none can serve the call.
    """
    tensors = (query, key, value)
    num_heads = [x.shape[-3] if x.dim() > 2 else 1 for x in tensors]
    is_grouped = enable_gqa and len(set(num_heads)) > 1
    has_one_batch = len({x.shape[:-3] for x in tensors}) == 1
    mask_form: MaskForm = "bool" if attn_mask is not None else "causal" if is_causal else "none"
    case = SdpaCase(
        device="cuda",
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=query.shape[-1],
        v_head_dim=value.shape[-1],
        mask=mask_form,
        grouped=is_grouped,
        dropout_p=dropout_p,
        requires_grad=_trains(*tensors),
        query_len=query.shape[-2],
        key_len=key.shape[-2],
        contiguous=all(x.stride(-1) == 1 for x in (*tensors, *(() if attn_mask is None else (attn_mask,)))),
        compute_capability=kind.compute_capability,
        num_dims=query.dim(),
        broadcast=not has_one_batch
        or num_heads[1] != num_heads[2]
        or (num_heads[0] != num_heads[1] and not is_grouped),
        mask_dims=2 if attn_mask is None else attn_mask.dim(),
        mask_requires_grad=attn_mask is not None and attn_mask.requires_grad,
        deterministic=torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled(),
        allowed=_list_allowed(),
    )
    choice = sdpa_kernel(case)
    if choice.name == "error":
        raise UnsupportedError(f"a CUDA device has no kernel for this attention: {'; '.join(choice.reasons)}")
    return choice.name


def _list_allowed() -> tuple[str, ...]:
    """List the kernels that torch may take; `torch.nn.attention.sdpa_kernel` sets what these functions say."""
    switches = torch.backends.cuda
    is_on: dict[str, Callable[[], bool]] = {
        "cudnn": switches.cudnn_sdp_enabled,
        "flash": switches.flash_sdp_enabled,
        "efficient": switches.mem_efficient_sdp_enabled,
        "math": switches.math_sdp_enabled,
    }
    return tuple(name for name, ask in is_on.items() if ask())


def _trains(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _is_mask(mask: Tensor | None, dtype: torch.dtype) -> bool:
    return mask is None or mask.dtype in (torch.bool, torch.float32, dtype)


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Turn a bool mask into terms of the scores, as torch does for every kernel."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    hidden = torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=dtype, device=mask.device), hidden)


def _pad_last_dim(x: Tensor, alignment: int) -> Tensor:
    missing = -x.shape[-1] % alignment
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def _align_mask(mask: Tensor) -> Tensor:
    """Pad a mask's rows and take the part that was there, unless every row lies aligned already."""
    is_aligned = mask.stride(-1) == 1 and not any(stride % EFFICIENT_MASK_ALIGNMENT for stride in mask.stride()[:-1])
    if is_aligned:
        return mask
    key_len = mask.shape[-1]
    padding = EFFICIENT_MASK_ALIGNMENT - key_len % EFFICIENT_MASK_ALIGNMENT  # torch adds a whole step to a full row
    return torch.nn.functional.pad(mask, (0, padding))[..., :key_len]


SDPA_OVERRIDES: tuple[Override, ...] = (
    Override(aten.scaled_dot_product_attention.default, "CompositeImplicitAutograd", attend_on_cuda),
)
