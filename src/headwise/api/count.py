"""`headwise.count`: parameters, FLOPs and KV bytes of a model, from its config where it has one."""

from headwise.api.results import Count, FlopsByPhase
from headwise.api.summary import resolve_seq, summarise
from headwise.config.model import ModelConfig
from headwise.cost.flops import forward_flops, train_flops
from headwise.cost.kv import dtype_bytes, kv_cache_bytes, kv_cache_bytes_per_token
from headwise.cost.parameters import count_parameters
from headwise.cost.results import FlopCount
from headwise.cost.workload import Workload
from headwise.loading.config import Location, load_config, locate

DEFAULT_KV_DTYPE = "bfloat16"
TRAIN_PER_FORWARD = 3  # forward, and two matrix products of the same size for each in backward


def count(model: str, *, batch: int = 1, seq: int | None = None, dtype: str | None = None) -> Count:
    """Count a model's parameters, FLOPs and KV-cache bytes.

    A preset, a config.json and a checkpoint folder are counted from the config alone, without torch. A module from
    `package.module:name` or a .gguf file is counted as it stands: its parameters, and its FLOPs while it runs.

    Args:
        model: MODEL, in any form of the command line.
        batch: number of texts (default 1).
        seq: tokens per text (default: the smaller of 512 and the model's positions).
        dtype: of the KV cache (default: the config's own, else bfloat16).

    Raises:
        HeadwiseError: MODEL cannot be found or read, or a number is out of range.
    """
    location = locate(model)
    if dtype is not None:
        dtype_bytes(dtype)
    if location.kind in ("python", "gguf"):
        return _count_module(location, batch=batch, seq=seq, dtype=dtype)
    return count_config(load_config(location), source=location.text, batch=batch, seq=seq, dtype=dtype)


def count_config(
    config: ModelConfig, *, source: str, batch: int = 1, seq: int | None = None, dtype: str | None = None
) -> Count:
    """Count from a config alone; see `count`."""
    workload = Workload(batch=batch, seq=resolve_seq(config, seq), phase="prefill")
    dtype = dtype or config.dtype or DEFAULT_KV_DTYPE
    return Count(
        model=summarise(config, name=config.name, source=source),
        batch=workload.batch,
        seq=workload.seq,
        dtype=dtype,
        parameters=count_parameters(config),
        flops=FlopsByPhase(
            forward=forward_flops(config, batch=batch, seq=workload.seq),
            train=train_flops(config, batch=batch, seq=workload.seq),
        ),
        kv_cache_bytes=kv_cache_bytes(config, batch=batch, seq=workload.seq, dtype=dtype),
        kv_cache_bytes_per_token=kv_cache_bytes_per_token(config, dtype=dtype),
    )


def _count_module(location: Location, *, batch: int, seq: int | None, dtype: str | None) -> Count:
    from headwise.api import running
    from headwise.api.example import example_inputs
    from headwise.loading.module import load_module

    loaded = load_module(location)
    if loaded.config is not None:
        return count_config(loaded.config, source=location.text, batch=batch, seq=seq, dtype=dtype)
    workload = Workload(batch=batch, seq=resolve_seq(None, seq), phase="prefill")
    inputs = example_inputs(loaded.module, batch=batch, seq=workload.seq)
    parameters, forward = running.count(loaded, inputs)
    attended = None if forward.attended is None else TRAIN_PER_FORWARD * forward.attended
    return Count(
        model=summarise(None, name=loaded.name, source=location.text),
        batch=batch,
        seq=workload.seq,
        dtype=dtype or DEFAULT_KV_DTYPE,
        parameters=parameters,
        flops=FlopsByPhase(
            forward=forward, train=FlopCount(dense=TRAIN_PER_FORWARD * forward.dense, attended=attended)
        ),
        kv_cache_bytes=None,
        kv_cache_bytes_per_token=None,
        notes=(*loaded.notes, "FLOPs were counted while the module ran on example inputs."),
    )
