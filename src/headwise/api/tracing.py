"""What a trace tells of a model that only a config describes: parameters, FLOPs, the memory of a step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from headwise.api.example import example_inputs
from headwise.api.running import UNKNOWN_PAIRS, explained, notes_on
from headwise.cost.results import FlopCount, ParameterCount, StepMemory
from headwise.cost.running.parameters import count_module_parameters
from headwise.cost.tracing.flops import trace_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError
from headwise.loading.build import build_module


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What was learnt without weights; None where the module's own code cannot run without numbers, `notes` say why.

    `workload` is what was traced, with the attention that the module has.
    """

    workload: Workload
    parameters: ParameterCount
    forward: FlopCount | None
    memory: StepMemory | None
    notes: tuple[str, ...] = ()


def trace_content(
    content: Mapping[str, Any], *, name: str, workload: Workload, is_attention_given: bool = True
) -> Traced:
    """Build the module of a config.json without weights, and trace a step of it.

    Args:
        content: what the config.json says.
        name: what to call it in errors.
        workload: the step.
        is_attention_given: False: the step has the attention that transformers gives the module by itself.

    Raises:
        HeadwiseError: transformers is not installed, or cannot build the module.
    """
    module = build_module(content, name=name)
    return trace_module(module, workload if is_attention_given else with_modules_attention(module, workload))


def with_modules_attention(module: nn.Module, workload: Workload) -> Workload:
    """Return the workload with the attention that transformers gives a module by itself: sdpa if it has that."""
    return replace(workload, attention="sdpa" if getattr(module, "_supports_sdpa", True) else "eager")


def trace_module(module: nn.Module, workload: Workload) -> Traced:
    """Trace a step of a module, which may be on the meta device."""
    notes: list[str] = []
    forward: FlopCount | None = None
    memory: StepMemory | None = None
    try:
        with explained(type(module).__name__):
            inputs = example_inputs(module, batch=workload.batch, seq=workload.seq)
            forward = trace_flops(module, inputs)
            notes += [note for note in notes_on(forward) if note != UNKNOWN_PAIRS]
            memory = step_memory(trace_step(module, inputs, workload))
    except HeadwiseError as error:
        notes.append(f"Not all can be traced: {str(error).rstrip('.')}.")
    return Traced(
        workload=workload,
        parameters=count_module_parameters(module),
        forward=forward,
        memory=memory,
        notes=tuple(notes),
    )
