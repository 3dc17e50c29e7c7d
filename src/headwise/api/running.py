"""What a report learns by running a module: counts, a measured step, heads. What it raises becomes one clear line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.api.looking import look_at_heads
from headwise.cost.devices import usable_ram_bytes
from headwise.cost.results import FlopCount, StepMemory
from headwise.cost.running.flop_counter import count_flops
from headwise.cost.running.measure import measure_training_step
from headwise.errors import HeadwiseError, ModelError, TextError, describe
from headwise.inspection.results import Inspection
from headwise.loading.module import LoadedModule
from headwise.results import format_bytes

SHARE_OF_MEMORY = 0.8  # a step that needs more of this machine's memory is not tried
UNKNOWN_PAIRS = (
    "Which pairs the attention reads is known of calls to torch's attention functions only; this model multiplies its "
    "matrices itself, so that only the full square could be counted."
)
UNCOUNTED = "Not in the FLOPs: {}, whose cost is not known here."
STATE_COPIES = 4  # weights, gradients and AdamW's two states: what a step holds at least


class OutOfMemory(ModelError):  # noqa: N818  the field's own words
    """A module needed more memory than there is: what it would have told is not known, but the rest is."""


def is_eager(module: nn.Module) -> bool:
    """Tell whether a Hugging Face model was told to run attention as plain matrix products."""
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager"


def count(
    loaded: LoadedModule, inputs: Mapping[str, Tensor], predicted: StepMemory | None
) -> tuple[FlopCount | None, tuple[str, ...]]:
    """Count the FLOPs of one forward pass while it runs, unless this machine's memory is too small for it.

    Returns:
        The count, or None; and notes that say what could not be known, and why.

    Raises:
        ModelError: the module raises on these inputs.
    """
    too_large = refusal("No forward pass was run", predicted.peak_bytes if predicted else weight_bytes(loaded.module))
    if too_large:
        return None, (too_large,)
    try:
        with explained(loaded.name), torch.no_grad():
            counted = count_flops(loaded.module, **inputs)
    except OutOfMemory as error:
        return None, (f"No forward pass was counted: {error}.",)
    return counted, notes_on(counted)


def notes_on(counted: FlopCount) -> tuple[str, ...]:
    """Say what a count of FLOPs could not tell."""
    unknown = counted.attended is None
    missing = UNCOUNTED.format(", ".join(counted.uncounted)) if counted.uncounted else None
    return (*((UNKNOWN_PAIRS,) if unknown else ()), *((missing,) if missing else ()))


def measure(
    loaded: LoadedModule, inputs: Mapping[str, Tensor], predicted: StepMemory | None
) -> tuple[StepMemory | None, tuple[str, ...]]:
    """Measure a training step; a note says why not where memory is too small or the module cannot be trained."""
    needed = predicted.peak_bytes if predicted else STATE_COPIES * weight_bytes(loaded.module)
    too_large = refusal("No step was measured", needed)
    if too_large:
        return None, (too_large,)
    try:
        with explained(loaded.name):
            return measure_training_step(loaded.module, inputs), ()
    except ModelError as error:  # out of memory, or nothing to train
        return None, (f"No step was measured: {error}.",)


def weight_bytes(module: nn.Module) -> int:
    """Return the bytes of all parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def refusal(what: str, needed_bytes: int) -> str | None:
    """Return why this machine's memory is too small for something, or None where it is not."""
    have_bytes = usable_ram_bytes()
    if needed_bytes <= SHARE_OF_MEMORY * have_bytes:
        return None
    return f"{what}: it needs about {format_bytes(needed_bytes)}, and this machine has {format_bytes(have_bytes)}."


def look(
    loaded: LoadedModule, texts: Sequence[str] | None, seq: int, progress: Callable[[int, int], None]
) -> tuple[Inspection | None, tuple[str, ...]]:
    """Look at the heads on texts (None = the default ones), or on example inputs of at most `seq` tokens.

    Returns:
        What the heads do, or None and a note that says why they cannot be read.
    """
    try:
        with explained(loaded.name):
            return look_at_heads(loaded, texts, seq=seq, progress=progress), ()
    except ModelError as error:
        return None, (f"Its heads cannot be shown: {error}.",)
    except TextError as error:
        if texts is not None:
            raise
        return None, (f"Its tokenizer cannot read the default text: {error}.",)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what a user's module raises into a ModelError that names it."""
    try:
        yield
    except HeadwiseError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise OutOfMemory(f"running {name} took more memory than this machine gives") from error
        raise ModelError(f"running {name} raised {describe(error)}") from error
