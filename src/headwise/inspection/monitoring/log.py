"""Where the training monitor's figures go: TensorBoard, anything with `log(dict)`, or a plain function."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headwise.errors import ConfigError
from headwise.inspection.monitoring.results import ONLY_STACK, WEIGHT_EDGES, MonitoredHead, MonitorSample

FIGURES = (
    *("entropy", "normalized_entropy", "sparsity", "sink_mass", "padding_mass", "mean_abs_score", "max_abs_score"),
    "gradient_norm",
)
MIDDLES = tuple((low + high) / 2 for low, high in pairwise(WEIGHT_EDGES))  # of the bins of the histogram
Log = Callable[[MonitorSample], None]


def open_log(target: Any) -> Log:
    """Return the function that writes a sample to a target.

    Args:
        target: a TensorBoard `SummaryWriter` (told by `add_scalar`), something with `log(dict)` such as a run of
            Weights & Biases or the wandb module, a function of a dict, a list or tuple of these, or None.

    Raises:
        ConfigError: it is none of these.
    """
    if target is None:
        return lambda sample: None
    if isinstance(target, Sequence) and not isinstance(target, str):
        logs = [open_log(each) for each in target]

        def write_all(sample: MonitorSample) -> None:
            for log in logs:
                log(sample)

        return write_all
    if hasattr(target, "add_scalar"):
        return lambda sample: _write_summaries(target, sample)
    if callable(getattr(target, "log", None)):
        return lambda sample: target.log(values_of(sample))
    if callable(target):
        return lambda sample: target(values_of(sample))
    raise ConfigError(
        "log must be a TensorBoard SummaryWriter, something with log(dict), a function of a dict, or a list of these; "
        f"got {type(target).__name__}"
    )


def values_of(sample: MonitorSample) -> dict[str, Any]:
    """Return a sample as one dict: numbers, and for each head the list of shares of its weights between WEIGHT_EDGES.

    Names are "attention_<figure>/layer_<layer>/head_<head>", with the stack before the layer where a model has several,
    and "attention/<figure>" for those of the whole model. What is not known is left out.
    """
    values: dict[str, Any] = scalars_of(sample)
    for head in sample.heads:
        total = sum(head.weight_counts) or 1.0
        values[_name("weights", head)] = [count / total for count in head.weight_counts]
    return values


def scalars_of(sample: MonitorSample) -> dict[str, float]:
    """Return the numbers of `values_of`."""
    heads = sample.heads
    scores = [head.max_abs_score for head in heads if head.max_abs_score is not None]
    values = {
        "attention/step": float(sample.step),
        "attention/dead_heads": float(sum(head.is_dead for head in heads)),
        "attention/collapsed_heads": float(sum(head.is_collapsed for head in heads)),
        "attention/lowest_normalized_entropy": min(head.normalized_entropy for head in heads),
        "attention/largest_padding_mass": max(head.padding_mass for head in heads),
        **({"attention/max_abs_score": max(scores)} if scores else {}),
    }
    for head in heads:
        for figure in FIGURES:
            value = getattr(head, figure)
            if value is not None:
                values[_name(figure, head)] = value
    return values


def _name(figure: str, head: MonitoredHead) -> str:
    stack = "" if head.stack == ONLY_STACK else f"/{head.stack.replace(' ', '_')}"
    return f"attention_{figure}{stack}/layer_{head.layer}/head_{head.head}"


def _write_summaries(writer: Any, sample: MonitorSample) -> None:
    for name, value in scalars_of(sample).items():
        writer.add_scalar(name, value, sample.step)
    for head in sample.heads:
        if hasattr(writer, "add_histogram_raw"):
            writer.add_histogram_raw(_name("weights", head), **_raw_histogram(head), global_step=sample.step)
        elif hasattr(writer, "add_histogram"):
            writer.add_histogram(_name("weights", head), _values_like(head), global_step=sample.step)


def _values_like(head: MonitoredHead) -> Tensor:
    """Return some thousand weights that are distributed as the head's, each in the middle of its bin."""
    counts = torch.tensor(head.weight_counts)
    return torch.tensor(MIDDLES).repeat_interleave((1000 * counts / counts.sum().clamp(min=1)).round().long())


def _raw_histogram(head: MonitoredHead) -> Mapping[str, Any]:
    """Return the arguments of `add_histogram_raw`; sums are those of weights in the middle of their bins."""
    filled = [place for place, count in enumerate(head.weight_counts) if count] or [0]
    return {
        "min": WEIGHT_EDGES[filled[0]],
        "max": WEIGHT_EDGES[filled[-1] + 1],
        "num": sum(head.weight_counts),
        "sum": sum(count * middle for count, middle in zip(head.weight_counts, MIDDLES, strict=True)),
        "sum_squares": sum(count * middle**2 for count, middle in zip(head.weight_counts, MIDDLES, strict=True)),
        "bucket_limits": list(WEIGHT_EDGES[1:]),
        "bucket_counts": list(head.weight_counts),
    }
