"""Why a change frees nothing, or less than one would think: read off what is alive before and after it."""

from headwise.config.attention import AttentionConfig
from headwise.config.latent import LatentAttentionConfig
from headwise.cost.outline import Group, Outline
from headwise.cost.planning.moments import describe_moment
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.step.layer_kernel import kernel_of
from headwise.errors import HeadwiseError
from headwise.kernels import KernelChoice
from headwise.results import format_bytes

LITTLE_PERCENT = 1
"""A change that frees less than this share of the peak is said to free little, and why."""

NOTHING_SHARE = 1000
"""Less than one part in so many of the peak is said to be nothing, more or less."""

NUM_GROUPS = 3
"""Of what fills a peak so many are named."""

MAX_EXPLAINED_LAYERS = 1000
"""Beyond, moments are not compared: there are thousands of them."""


def kernel_choice(setup: Setup) -> KernelChoice | None:
    """Return torch's kernel for the first layer that attends; None with eager attention, or where it is not known."""
    if setup.workload.attention != "sdpa" or setup.config is None:
        return None
    for block, _ in setup.config.block_groups:
        if isinstance(block.attention, AttentionConfig | LatentAttentionConfig):
            return kernel_of(setup.config.model_type, block.attention, setup.workload)
    return None


def why(predictor: Predictor, before: Setup, after: Setup, *, is_enough: bool) -> str | None:
    """Say why a change frees little, or what the rest is; None where it does what one would expect.

    Args:
        predictor: tells what is alive when.
        before, after: the setup without and with the change.
        is_enough: the step fits with the change: then it is said of no other peak that it remains.
    """
    spread = copied_heads(after) if before.sharding is None else None
    sentences = [text for text in (_other_kernel(before, after), spread) if text]
    peak_before, peak_after = predictor.step(before), predictor.step(after)
    freed_bytes = peak_before.peak_bytes - peak_after.peak_bytes
    is_little = 100 * freed_bytes < LITTLE_PERCENT * peak_before.peak_bytes
    is_other = peak_before.peak_moment != peak_after.peak_moment
    has_moved = not is_enough and (is_other or before.workload.checkpoint != after.workload.checkpoint)
    is_deep = before.config is not None and before.config.num_layers > MAX_EXPLAINED_LAYERS
    if (is_little or has_moved) and not is_deep:
        old, new = predictor.outline(before), predictor.outline(after)
        if is_little:
            sentences.append(_frees_little(before, after, old, new))
        else:
            sentences.append(f"then the peak is at {_peak_in_words(after, new)}")
    return "; ".join(sentences) or None


def copied_heads(setup: Setup) -> str | None:
    """Say that key/value heads are reckoned on several devices each, where heads are shared out among more of them."""
    sharding, config = setup.sharding, setup.config
    if sharding is None or sharding.kind not in ("tensor", "sequence") or config is None:
        return None
    layers = (block.attention for block, _ in config.block_groups)
    fewest = min((one.num_kv_heads for one in layers if isinstance(one, AttentionConfig)), default=0)
    if not 0 < fewest < sharding.num_devices:
        return None
    heads = "the one key/value head is" if fewest == 1 else f"each of {fewest} key/value heads is"
    return f"{heads} taken to be copied on {sharding.num_devices // fewest} devices, which the implementation has to do"


def _other_kernel(before: Setup, after: Setup) -> str | None:
    """Say that torch falls back to its quadratic kernel with the change, and why; or that it no longer does."""
    choice, earlier = kernel_choice(after), kernel_choice(before)
    if choice is None or (earlier is not None and earlier.is_fused == choice.is_fused):
        return None
    if not choice.is_fused:
        memory = choice.memory.partition(":")[0]
        what = (
            "attention is plain tensor operations"
            if choice.name == "reference"
            else f'torch takes its "{choice.name}" kernel'
        )
        return f"{what}, memory {memory}: {'; '.join(choice.reasons)}"
    return None if earlier is None else f'the kernel is then "{choice.name}" in place of "{earlier.name}"'


def _frees_little(before: Setup, after: Setup, old: Outline, new: Outline) -> str:
    """Say what the change makes smaller, when that is alive, and what fills the peak instead."""
    peak = _peak_in_words(after, new)
    if after.workload.checkpoint != before.workload.checkpoint:
        choice = kernel_choice(after)
        if after.workload.checkpoint == "selective" and choice is not None and choice.is_fused:
            no_scores = f'the fused kernel ("{choice.name}") has kept no scores, so there are none to drop'
            return f"{no_scores}; the peak is at {peak}"
    label, most = _most_freed(old, new)
    if most <= 0:
        grown = _matter(new.peak_bytes - old.peak_bytes, old)
        more = f"it takes {format_bytes(grown)} more" if grown else "it makes no tensor of the step smaller"
        return f"{more}; the peak is at {peak}"
    if label == new.moments[new.peak]:
        return f"all it frees is {format_bytes(most)}; the peak is at {peak}"
    freed = _matter(old.peak_bytes - new.peak_bytes, old)
    elsewhere = f"it frees {format_bytes(most)} at {describe_moment(label, after.config)}"
    return f"{elsewhere}, but {format_bytes(freed) if freed else 'nothing'} of the peak at {peak}"


def _matter(num_bytes: int, outline: Outline) -> int:
    """Return the bytes, 0 where they are negative or nothing beside the peak."""
    return num_bytes if num_bytes * NOTHING_SHARE >= outline.peak_bytes else 0


def _most_freed(old: Outline, new: Outline) -> tuple[str, int]:
    """Return the moment at which a change frees most, and the bytes."""
    after = dict(zip(new.moments, new.bytes_by_moment, strict=True))
    freed = [
        (before - after[label], label)
        for label, before in zip(old.moments, old.bytes_by_moment, strict=True)
        if label in after
    ]
    most, label = max(freed, key=lambda one: one[0], default=(0, ""))  # of equals the first moment
    return label, most


def _peak_in_words(setup: Setup, outline: Outline) -> str:
    """Name the moment of the peak, its bytes, and what fills it."""
    moment = describe_moment(outline.moments[outline.peak], setup.config)
    groups = [_describe_group(group) for group in outline.groups[:NUM_GROUPS]]
    return f"{moment}, where {', '.join(groups)} are among {format_bytes(outline.peak_bytes)}"


def _describe_group(group: Group) -> str:
    """Name the tensors that fill the peak, those of one name and size together."""
    total = format_bytes(group.bytes)
    if group.shape is None:
        return f"{group.name} of {total}"
    count = f"{group.count} x " if group.count > 1 else ""
    return f"{count}{group.name} {group.shape} {group.dtype}, {total}"


def refusal(error: HeadwiseError, before: Setup, after: Setup | None) -> str:
    """Return the text of an error as the reason why a change cannot be made, or cannot be told."""
    reason = str(error).strip().splitlines()[0]
    if after is not None and before.config is not None and after.config != before.config:
        return f"the implementation of {before.config.model_type!r} has no such layers ({reason})"
    return reason
