"""`headwise.count`: parameters, FLOPs, memory and KV bytes of a model, from its config where it has one."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwise.api.images import attention_of, note_on_image, require_no_image, take_image
from headwise.api.prediction import kernel_note, kernel_of, predict, with_usual_attention
from headwise.api.results import Count, FlopsByPhase
from headwise.api.subject import find_content, find_images, find_name, find_on_paper, load
from headwise.api.summary import default_seq, resolve_seq, summarise
from headwise.config.checks import require_size
from headwise.config.model import ModelConfig
from headwise.config.vision_model import GrowingPatches, ImageConfig
from headwise.cost.flops import TRAIN_PER_FORWARD, decode_flops
from headwise.cost.kv import DEFAULT_DTYPE, dtype_bytes, kv_cache_bytes, kv_cache_bytes_per_token, kv_layers
from headwise.cost.layer_kinds import layer_kinds
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.results import FlopCount, StepMemory
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, UnknownArchitectureError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn

    from headwise.loading.module import LoadedModule

UNPREDICTED = "The memory of a step is not told: {}."
UNTRACED = (
    "The memory of a step of {} with this setting has no closed form here; --trace (trace=True) runs the module's own "
    "code without numbers."
)
A_GPU = "a GPU such as the A100"
QUADRATIC = "That kernel builds the score matrix: the memory of a step grows with the square of the length."
TRACED = (
    "There is no closed form of {}: parameters are those of the module that transformers builds, FLOPs and memory are "
    "traced on it."
)


def count(
    model: "str | os.PathLike[str] | ModelConfig | ImageConfig | nn.Module",
    *,
    batch: int = 1,
    seq: int | None = None,
    image: int | None = None,
    stride: int | None = None,
    dtype: str | None = None,
    page_tokens: int | None = None,
    macs: bool = False,
    trace: bool = False,
    verify: bool = False,
    **step: Any,
) -> Count:
    """Count a model's parameters, FLOPs, KV-cache bytes, and the memory of a training step.

    A preset, a config.json, a checkpoint folder and a ModelConfig are counted from the config alone, without torch. A
    config of a family without a closed form is traced: transformers builds its module without weights, and a step runs
    on tensors without numbers. A module, from `package.module:name`, a .gguf file or in hand, is counted as it stands
    unless it carries a Hugging Face config: its parameters, and its FLOPs while it runs. A `PatchEncoder` or a `C3TR`,
    or the config of one, is counted from the config at a size of image.

    Args:
        model: MODEL, in any form of the command line, or a config or a module in hand.
        batch: number of texts, or of images (default 1).
        seq: tokens per text (default: the smaller of 512 and the model's positions; an image's own number).
        image: pixels along one side of a square image, for a module that reads images, or maps of them, of any size.
        stride: of a C3TR: pixels of the image from one place of its feature map to the next (default: 32, where YOLOv5
            puts it: 640 pixels are a map of 20 x 20).
        dtype: of the KV cache (default: the config's own, else bfloat16).
        page_tokens: tokens in a page of an engine whose cache is allocated in pages (default: no pages).
        macs: also give multiply-adds, half the FLOPs.
        trace: trace the memory of a step where it has no closed form, which needs torch and transformers. A family
            that is not known at all is traced in any case.
        verify: also build a small model of the same kind and compare closed form, trace and measurement on it.
        **step: of the training step whose memory and FLOPs are told: the fields of `Workload` but for batch, seq
            and phase (`precision`, `optimizer`, `attention`, `checkpoint`, ...).

    Raises:
        HeadwiseError: MODEL cannot be found or read, or a number is out of range.
    """
    if model is None:
        raise HeadwiseError("model must be a MODEL, a ModelConfig or a module; got None")
    if dtype is not None:
        dtype_bytes(dtype)
    if page_tokens is not None:
        require_size("page_tokens", page_tokens)
    if verify:
        from headwise.api.verify import require_runnable

        require_runnable(step)
    if "phase" in step:
        raise HeadwiseError("phase must be left out: a count tells a forward pass, a training step and one more token")
    size = {"batch": batch, "seq": seq, "dtype": dtype, "page_tokens": page_tokens}
    result = _count(model, size, step, trace=trace, image=image, stride=stride)
    if macs and result.flops is not None:
        result = replace(result, macs=result.flops.macs)
    if verify:
        from headwise.api.verify import verify as compare

        result = replace(result, verification=compare(model, **step))
    return result


def _count(
    model: Any,
    size: dict[str, Any],
    step: Mapping[str, Any],
    *,
    trace: bool,
    image: int | None,
    stride: int | None,
) -> Count:
    images = find_images(model)
    if images is not None:
        config = take_image(images[0], images[1], image=image, stride=stride, seq=size["seq"])
        return _count_config(config, source=images[2], content=None, **size, step=step)
    try:
        paper = find_on_paper(model, kinds=("preset", "config", "checkpoint"))
    except UnknownArchitectureError as unknown:
        require_no_image(find_name(model), None, image=image, stride=stride)
        return _count_untold(model, unknown, size, step)
    if paper is not None:
        config, source = paper
        require_no_image(config.name, config, image=image, stride=stride)
        return _count_config(config, source=source, content=find_content(model) if trace else None, **size, step=step)
    loaded, source = load(model)
    if loaded.images is not None:
        config = take_image(loaded.images, loaded.name, image=image, stride=stride, seq=size["seq"])
        attention, notes = attention_of(loaded.module)
        step = {"attention": attention, **step}
        result = _count_config(config, source=source, content=None, **size, step=step)
        return replace(result, notes=(*loaded.notes, *notes, *result.notes))
    require_no_image(loaded.name, loaded.config, image=image, stride=stride)
    if loaded.config is not None:
        return _count_config(loaded.config, source=source, content=None, **size, step=step)
    from headwise.api.running import explained

    with explained(loaded.name):
        return _count_module(loaded, source=source, **size)


def _count_config(
    config: ModelConfig,
    *,
    source: str,
    content: Mapping[str, Any] | None,
    batch: int,
    seq: int | None,
    dtype: str | None,
    page_tokens: int | None,
    step: Mapping[str, Any],
) -> Count:
    workload = Workload(batch=batch, seq=resolve_seq(config, seq), **step)
    if "attention" not in step:
        workload = with_usual_attention(config, workload)
    size = {"batch": workload.batch, "seq": workload.seq}
    flops = step_flops(config, workload)
    memory, workload, notes = _predict_memory(config, content, workload, step)
    kernel = kernel_of(config, workload)
    if kernel is not None and kernel.is_quadratic:
        notes = (kernel_note(A_GPU if workload.device == "cuda" else "a CPU", kernel), QUADRATIC, *notes)
    notes = (*note_on_image(config), *notes)
    return Count(
        model=summarise(config, name=config.name, source=source),
        batch=workload.batch,
        seq=workload.seq,
        dtype=dtype or config.dtype or DEFAULT_DTYPE,
        parameters=count_parameters(config),
        flops=FlopsByPhase(
            forward=flops.forward,
            train=flops.model,
            backward=flops.backward,
            recomputed=flops.recomputed,
            hardware=flops.hardware,
            decode=None if config.kind == "encoder" else decode_flops(config, **size),
        ),
        kv_cache_bytes=kv_cache_bytes(config, **size, dtype=dtype, kv_cache=workload.kv_cache),
        kv_cache_bytes_per_token=kv_cache_bytes_per_token(config, dtype=dtype),
        kv_layers=kv_layers(config, **size, dtype=dtype, page_tokens=page_tokens, kv_cache=workload.kv_cache),
        layers=layer_kinds(config, **size, dtype=dtype),
        memory=memory,
        workload=workload,
        notes=notes,
    )


def _predict_memory(
    config: ModelConfig, content: Mapping[str, Any] | None, workload: Workload, step: Mapping[str, Any]
) -> tuple[StepMemory | None, Workload, tuple[str, ...]]:
    """Predict the memory of a step in closed form, or trace it where there is none and a config's content is given."""
    if isinstance(config.patches, GrowingPatches):  # nothing but the closed form tells it
        try:
            return predict_step(config, workload), workload, ()
        except UnsupportedError as error:
            return None, workload, (UNPREDICTED.format(error),)
    predicted = predict(config, workload)
    if predicted is not None:
        return predicted, workload, ()
    if content is None:
        return None, workload, (UNTRACED.format(config.model_type),)
    from headwise.api.tracing import trace_content

    try:
        traced = trace_content(content, name=config.name, workload=workload, is_attention_given="attention" in step)
    except HeadwiseError as error:
        return None, workload, (UNPREDICTED.format(error),)
    notes = (
        f"The memory of a step of {config.model_type} is traced with {traced.workload.attention} attention, since it "
        "has no closed form here.",
        *traced.notes,
    )
    return traced.memory, traced.workload, notes


def _count_untold(model: Any, unknown: HeadwiseError, size: dict[str, Any], step: Mapping[str, Any]) -> Count:
    """Count a model whose family has no closed form, by building it without weights and tracing a step."""
    content = find_content(model)
    if content is None:
        raise unknown
    from headwise.api.tracing import trace_content

    seq = size["seq"] if size["seq"] is not None else default_seq(content)
    workload = Workload(batch=size["batch"], seq=resolve_seq(None, seq), **step)
    name = find_name(model)
    traced = trace_content(content, name=name, workload=workload, is_attention_given="attention" in step)
    return Count(
        model=summarise(None, name=name, source=os.fspath(model)),
        batch=workload.batch,
        seq=workload.seq,
        dtype=size["dtype"] or DEFAULT_DTYPE,
        parameters=traced.parameters,
        flops=_by_phase(traced.forward),
        kv_cache_bytes=None,
        kv_cache_bytes_per_token=None,
        memory=traced.memory,
        workload=traced.workload,
        source_of="trace",
        notes=(TRACED.format(content.get("model_type")), *traced.notes),
    )


def _count_module(
    loaded: "LoadedModule", *, source: str, batch: int, seq: int | None, dtype: str | None, page_tokens: int | None
) -> Count:
    from headwise.api import running
    from headwise.api.example import example_inputs
    from headwise.cost.running.parameters import count_module_parameters

    workload = Workload(batch=batch, seq=resolve_seq(None, seq), phase="prefill")
    inputs = example_inputs(loaded.module, batch=workload.batch, seq=workload.seq)
    forward, notes = running.count(loaded, inputs, None)
    return Count(
        model=summarise(None, name=loaded.name, source=source),
        batch=workload.batch,
        seq=workload.seq,
        dtype=dtype or DEFAULT_DTYPE,
        parameters=count_module_parameters(loaded.module),
        flops=_by_phase(forward),
        kv_cache_bytes=None,
        kv_cache_bytes_per_token=None,
        source_of="module",
        notes=(*loaded.notes, "FLOPs are counted while the module runs on example inputs.", *notes),
    )


def _by_phase(forward: FlopCount | None) -> FlopsByPhase | None:
    """Return what is known of a module whose forward pass alone was counted."""
    if forward is None:
        return None
    attended = None if forward.attended is None else TRAIN_PER_FORWARD * forward.attended
    train = FlopCount(dense=TRAIN_PER_FORWARD * forward.dense, attended=attended, uncounted=forward.uncounted)
    return FlopsByPhase(forward=forward, train=train)
