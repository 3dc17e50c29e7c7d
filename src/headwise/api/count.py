"""`headwise.count`: parameters, FLOPs and KV bytes of a model, from its config where it has one."""

import os
from typing import TYPE_CHECKING

from headwise.api.results import Count, FlopsByPhase
from headwise.api.subject import find_on_paper, load
from headwise.api.summary import resolve_seq, summarise
from headwise.config.model import ModelConfig
from headwise.cost.flops import TRAIN_PER_FORWARD, forward_flops, train_flops
from headwise.cost.kv import DEFAULT_DTYPE, dtype_bytes, kv_cache_bytes, kv_cache_bytes_per_token
from headwise.cost.parameters import count_parameters
from headwise.cost.results import FlopCount
from headwise.cost.workload import Workload

if TYPE_CHECKING:
    from torch import nn

    from headwise.loading.module import LoadedModule


def count(
    model: "str | os.PathLike[str] | ModelConfig | nn.Module",
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: str | None = None,
) -> Count:
    """Count a model's parameters, FLOPs and KV-cache bytes.

    A preset, a config.json, a checkpoint folder and a ModelConfig are counted from the config alone, without torch. A
    module, from `package.module:name`, a .gguf file or in hand, is counted as it stands unless it carries a Hugging
    Face config: its parameters, and its FLOPs while it runs.

    Args:
        model: MODEL, in any form of the command line, or a ModelConfig or a module in hand.
        batch: number of texts (default 1).
        seq: tokens per text (default: the smaller of 512 and the model's positions).
        dtype: of the KV cache (default: the config's own, else bfloat16).

    Raises:
        HeadwiseError: MODEL cannot be found or read, or a number is out of range.
    """
    if dtype is not None:
        dtype_bytes(dtype)
    paper = find_on_paper(model, kinds=("preset", "config", "checkpoint"))
    if paper is not None:
        config, source = paper
        return _count_config(config, source=source, batch=batch, seq=seq, dtype=dtype)
    loaded, source = load(model)
    if loaded.config is not None:
        return _count_config(loaded.config, source=source, batch=batch, seq=seq, dtype=dtype)
    from headwise.api.running import explained

    with explained(loaded.name):
        return _count_module(loaded, source=source, batch=batch, seq=seq, dtype=dtype)


def _count_config(config: ModelConfig, *, source: str, batch: int, seq: int | None, dtype: str | None) -> Count:
    workload = Workload(batch=batch, seq=resolve_seq(config, seq), phase="prefill")
    size = {"batch": workload.batch, "seq": workload.seq}
    return Count(
        model=summarise(config, name=config.name, source=source),
        batch=workload.batch,
        seq=workload.seq,
        dtype=dtype or config.dtype or DEFAULT_DTYPE,
        parameters=count_parameters(config),
        flops=FlopsByPhase(forward=forward_flops(config, **size), train=train_flops(config, **size)),
        kv_cache_bytes=kv_cache_bytes(config, **size, dtype=dtype),
        kv_cache_bytes_per_token=kv_cache_bytes_per_token(config, dtype=dtype),
    )


def _count_module(loaded: "LoadedModule", *, source: str, batch: int, seq: int | None, dtype: str | None) -> Count:
    from headwise.api import running
    from headwise.api.example import example_inputs
    from headwise.cost.module_parameters import count_module_parameters

    workload = Workload(batch=batch, seq=resolve_seq(None, seq), phase="prefill")
    inputs = example_inputs(loaded.module, batch=workload.batch, seq=workload.seq)
    forward, notes = running.count(loaded, inputs, None)
    return Count(
        model=summarise(None, name=loaded.name, source=source),
        batch=workload.batch,
        seq=workload.seq,
        dtype=dtype or DEFAULT_DTYPE,
        parameters=count_module_parameters(loaded.module),
        flops=None if forward is None else FlopsByPhase(forward=forward, train=_train(forward)),
        kv_cache_bytes=None,
        kv_cache_bytes_per_token=None,
        notes=(*loaded.notes, "FLOPs are counted while the module runs on example inputs.", *notes),
    )


def _train(forward: FlopCount) -> FlopCount:
    attended = None if forward.attended is None else TRAIN_PER_FORWARD * forward.attended
    return FlopCount(dense=TRAIN_PER_FORWARD * forward.dense, attended=attended)
