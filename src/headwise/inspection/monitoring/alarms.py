"""What to warn of while a model trains, and what to do about it."""

from collections.abc import Iterator
from functools import partial

import torch

from headwise.inspection.monitoring.results import Alarm, AlarmKind, MonitoredHead

SHARE_OF_LIMIT = 0.5  # of a dtype's largest number: from here one doubling of the product overflows
PADDING_ABOVE = 1e-3  # of a query's weight: hidden padding has 0, and softmax leaves no rounding there
SINK_FROM = 0.5  # of a head's weight on the first token: such a head idles, as those of trained models do


def is_collapsed(normalized_entropy: float, sink_mass: float, *, below: float) -> bool:
    """Tell whether a head's entropy is collapsed: nearly all weight of each query is on one key.

    A head that rests on the first token is left out: low entropy is there how a head does nothing, in models that train
    well, too.

    Args:
        normalized_entropy: entropy / log(visible keys).
        sink_mass: mean weight on the first token.
        below: the normalised entropy from which downwards it counts as collapsed.

    Source: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", section 3;
    sinks: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.1.
    """
    return normalized_entropy < below and sink_mass < SINK_FROM


def find_alarms(
    head: MonitoredHead, *, step: int, largest_product: float, dtype: torch.dtype | None, collapse_below: float
) -> Iterator[Alarm]:
    """Yield what there is to warn of in one head at one step.

    Args:
        head: its figures.
        step: number of the step.
        largest_product: largest |query . key|, before it is scaled; NaN: not known.
        dtype: that of queries and keys; None: not known.
        collapse_below: as of `is_collapsed`, for the text.
    """
    alarm = partial(_alarm, head, step)
    if head.is_collapsed:
        yield alarm(
            "entropy collapse",
            head.normalized_entropy,
            f"the entropy is {head.normalized_entropy:.2g} of a uniform head's, below {collapse_below:g}: each query "
            "reads one key, and training tends to become unstable; lower the learning rate or warm up longer, "
            "normalise queries and keys (qk_norm), or clip gradients more",
        )
    name = str(dtype).removeprefix("torch.")
    limit = torch.inf if dtype is None else torch.finfo(dtype).max
    # not "at least": a NaN, as inf - inf makes it, is an overflow that has happened
    if dtype is not None and not largest_product < SHARE_OF_LIMIT * limit:
        bfloat16 = "train in bfloat16, " if dtype == torch.float16 else ""
        yield alarm(
            "score overflow",
            largest_product,
            f"the largest product of a query and a key is {largest_product:.3g}, and {name} ends at "
            f"{limit:.3g}: beyond it scores are inf and weights NaN; {bfloat16}lower the learning rate, scale queries "
            "before the product, or normalise queries and keys (qk_norm)",
        )
    if head.padding_mass > PADDING_ABOVE:
        yield alarm(
            "attention to padding",
            head.padding_mass,
            f"queries of real tokens put {head.padding_mass:.2g} of their weight on padding, where it must be 0; give "
            "the model a mask that hides it (attention_mask= in transformers, key_padding_mask= in torch, "
            "mask=KeyPadding(...) here)",
        )


def _alarm(head: MonitoredHead, step: int, kind: AlarmKind, figure: float, text: str) -> Alarm:
    return Alarm(step=step, stack=head.stack, layer=head.layer, head=head.head, kind=kind, figure=figure, text=text)
