"""What `bench` is asked, read and checked once at its door."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from headwise.api.bench_results import BenchCase
from headwise.config.checks import MAX_SIZE, require_choice, require_size, require_text, shown
from headwise.config.mask_text import MaskOfLength, read_mask
from headwise.errors import ConfigError
from headwise.masks.patterns import Mask, require_batch_size

if TYPE_CHECKING:
    import torch

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
PHASES = ("forward", "train")
DEVICES = ("here", "cpu", "cuda")
MAX_REPEATS = 10_000


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """A checked request: what to measure, at which lengths, with which implementations, on which device."""

    case: BenchCase
    seqs: tuple[int, ...]
    impls: tuple[str, ...]
    repeats: int
    mask_of: MaskOfLength
    device: "torch.device"
    dtype: "torch.dtype"


def read_request(
    *,
    seq: object,
    batch: object,
    num_heads: object,
    num_kv_heads: object,
    head_dim: object,
    mask: object,
    impl: object,
    phase: object,
    dtype: object,
    device: object,
    repeats: object,
) -> BenchRequest:
    """Return what is asked, checked.

    Raises:
        ConfigError: a setting is of another kind or out of range, or this machine has no such device.
        UnsupportedError: there is no such implementation.
    """
    import torch

    from headwise.ops.obstacles import require_impl

    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    sizes = {"batch": batch, "num_heads": num_heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    for name, value in sizes.items():
        require_size(name, value)
    assert isinstance(batch, int) and isinstance(num_heads, int)
    assert isinstance(kv_heads, int) and isinstance(head_dim, int)
    if num_heads % kv_heads:
        raise ConfigError(f"num_heads must be a multiple of num_kv_heads; got {num_heads} and {kv_heads}")
    require_size("repeats", repeats, maximum=MAX_REPEATS)
    require_choice("phase", phase, PHASES)
    require_choice("dtype", dtype, (*DTYPES, *DTYPES.values()))
    require_choice("device", device, DEVICES)
    assert isinstance(repeats, int) and isinstance(dtype, str) and isinstance(device, str)
    seqs = _read_lengths(seq)
    impls = _read_names(impl)
    for name in impls:
        require_impl(name)
    mask_of, mask_name = _read_mask(mask, batch)
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError('device must be "here" or "cpu" on this machine, where torch finds no GPU; got \'cuda\'')
    place = "cuda" if device == "cuda" or (device == "here" and has_gpu) else "cpu"
    dtype_name = DTYPES.get(dtype, dtype)
    return BenchRequest(
        case=BenchCase(
            batch=batch,
            num_heads=num_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            mask=mask_name,
            phase=cast(Literal["forward", "train"], phase),
            dtype=dtype_name,
            device=place,
        ),
        seqs=seqs,
        impls=impls,
        repeats=repeats,
        mask_of=mask_of,
        device=torch.device(place),
        dtype=getattr(torch, dtype_name),
    )


def _read_lengths(seq: object) -> tuple[int, ...]:
    """Return lengths in rising order, each once."""
    if isinstance(seq, str):
        words = [word.strip() for word in seq.split(",")]
        if not all(word.isdecimal() and len(word) <= len(str(MAX_SIZE)) for word in words):
            raise ConfigError(f"seq must be lengths with commas between them, as 1024,2048; got {shown(seq)}")
        seq = [int(word) for word in words]
    lengths = [seq] if isinstance(seq, int) else seq
    if not isinstance(lengths, Sequence) or not lengths:
        raise ConfigError(f"seq must be a length or several, as 1024,2048; got {shown(seq)}")
    for length in lengths:
        require_size("seq", length)
    return tuple(sorted(set(lengths)))


def _read_names(impl: object) -> tuple[str, ...]:
    """Return the names of implementations in their order, each once."""
    names = [word.strip() for word in impl.split(",")] if isinstance(impl, str) else impl
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"impl must be an implementation or several, as auto,sdpa; got {shown(impl)}")
    return tuple(dict.fromkeys(names))


def _read_mask(mask: object, batch: int) -> tuple[MaskOfLength, str]:
    if isinstance(mask, Mask):
        require_batch_size(mask, batch)
        return (lambda seq: mask), repr(mask)
    require_text("mask", mask)
    assert isinstance(mask, str)
    return read_mask(mask), mask
