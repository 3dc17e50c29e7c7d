"""What has to be said beside a plan: what it takes for granted of a length, of devices, of a prompt's scores."""

from collections.abc import Iterator
from dataclasses import replace

from headwise.config.model import ModelConfig
from headwise.config.vision_model import GrowingPatches
from headwise.cost.planning.more_devices import MOST_DEVICES, devices_that_fit
from headwise.cost.planning.plan import Planned
from headwise.cost.planning.reasons import copied_heads
from headwise.cost.planning.results import Fits
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.results import Device, Ledger, LedgerEntry, bytes_at_moments
from headwise.results import format_bytes

LARGE_SCORES = 10
"""Scores of more than one part in so many of the peak are worth a note."""

Axes = tuple[tuple[int, ...], tuple[int, ...]]

LONGER_TABLE = "{name} has positions for {positions:,} tokens: {seq:,} are reckoned with a longer table of positions."
BEYOND = "{name} was made for {positions:,} tokens; {seq:,} are beyond that."
LONGER_SIZES = "Lengths above {positions:,} ({which}) are reckoned with a longer table of positions than {name} has."
LEFT_OUT = (
    "Of the sweep {points} of {all_points} points and the edges of {edges} batches were not told, or not in time."
)
MORE_DEVICES = "Over {number:,} devices it {fits}{texts}."
NO_MORE_DEVICES = "Over more devices it does not fit so either: {tried} were tried."
LARGEST_IMAGE = "The largest image found to fit has {image:,} x {image:,} pixels, {side:,} x {side:,} tokens."
SWEPT_IMAGES = "The sweep's images of {images} pixels a side have {tokens} tokens."
NO_LARGEST_IMAGE = "The largest image was not found in time."
NOT_ONE_PLACE = "Not even an image of {step:,} x {step:,} pixels, one token, fits."
ALL_SCORES = (
    "The scores of all {seq:,} tokens of a prompt are reckoned, {size} at the peak. transformers' generate asks for "
    "those of the last token alone (logits_to_keep=1): the peak is {saved} lower then, {peak}."
)


def notes_on_length(config: ModelConfig, seq: int) -> list[str]:
    """Say that a length is beyond a model's positions, where it is."""
    if seq <= config.max_positions:
        return []
    text = LONGER_TABLE if config.position_table_size else BEYOND
    return [text.format(name=config.name, positions=config.max_positions, seq=seq)]


def notes_on_images(config: ModelConfig | None, planned: Planned, axes: Axes | None) -> Iterator[str]:
    """Say which image is the largest that fits, and how many tokens images of a sweep are, where they may grow."""
    patches = config.patches if config is not None else None
    if not isinstance(patches, GrowingPatches):
        return
    if planned.largest_image is None:
        yield NO_LARGEST_IMAGE
    elif planned.largest_image:
        yield LARGEST_IMAGE.format(image=planned.largest_image, side=planned.largest_image // patches.patch_size)
    else:
        yield NOT_ONE_PLACE.format(step=patches.patch_size)
    if axes is not None and axes[1]:
        tokens = (f"{(image // patches.patch_size) ** 2:,}" for image in axes[1])
        yield SWEPT_IMAGES.format(images=", ".join(f"{image:,}" for image in axes[1]), tokens=", ".join(tokens))


def notes_on_sizes(config: ModelConfig | None, seq: int, planned: Planned, axes: Axes | None) -> Iterator[str]:
    """Say which sizes beside the one asked for are beyond a model's position table, and what a sweep leaves out.

    Args:
        config: the model, as it is read.
        seq: the length asked for, of which `notes_on_length` speaks.
        planned: what was found.
        axes: batches and lengths that a sweep was asked for; () stands for the step's own.
    """
    sweep = planned.sweep
    if config is not None and config.position_table_size:
        edges = () if sweep is None else sweep.frontier
        beyond = {
            "the largest that fits": planned.largest_seq or 0,
            "the sweep's": max((point.seq for point in (() if sweep is None else sweep.points)), default=0),
            "the sweep's edge": max((edge.largest_seq or 0 for edge in edges), default=0),
        }
        which = ", ".join(words for words, length in beyond.items() if length > max(config.max_positions, seq))
        if which:
            yield LONGER_SIZES.format(name=config.name, positions=config.max_positions, which=which)
    if sweep is not None and axes is not None:
        batches, seqs = (max(1, len(sizes)) for sizes in axes)
        points, edges_left = batches * seqs - len(sweep.points), batches - len(sweep.frontier)
        if points or edges_left:
            yield LEFT_OUT.format(points=points, all_points=batches * seqs, edges=edges_left)


def notes_on_plan(predictor: Predictor, setup: Setup, device: Device, planned: Planned) -> Iterator[str]:
    """Say what a plan takes for granted, and over how many devices a step would fit that is spread over too few."""
    if setup.sharding is not None:
        copied = copied_heads(setup)
        if copied is not None:
            yield f"{copied[0].upper()}{copied[1:]}."
        if planned.verdict.fits != "yes":
            yield _on_devices(setup, planned.verdict.fits, devices_that_fit(predictor, setup, device))
    scores = _on_scores(setup, planned.ledger)
    if scores is not None:
        yield scores


def _on_devices(setup: Setup, fits: Fits, found: tuple[int, Fits] | None) -> str:
    """Say over how many devices it would fit, or be tight where it is not so now."""
    assert setup.sharding is not None
    if found is None or found[1] == fits:
        first = 2 * setup.sharding.num_devices
        tried = f"{first:,}, twice as many, and so on to {MOST_DEVICES:,}" if first <= MOST_DEVICES else "none"
        return NO_MORE_DEVICES.format(tried=tried)
    number, better = found
    of_each = setup.workload.batch * setup.workload.accumulation
    texts = f", with {setup.workload.batch:,} of {number * of_each:,} texts on each" if setup.num_copies > 1 else ""
    words = {"yes": "fits", "tight": "is tight", "no": "does not fit"}[better]
    return MORE_DEVICES.format(number=number, fits=words, texts=texts)


def _on_scores(setup: Setup, ledger: Ledger) -> str | None:
    """Say what a prefill would need with the scores of each text's last token alone."""
    config, workload = setup.config, setup.workload
    if config is None or config.kind != "decoder" or config.model_type == "headwise" or workload.phase != "prefill":
        return None
    shape = (workload.batch, workload.seq, config.vocab_size)

    def is_of_scores(entry: LedgerEntry) -> bool:
        return entry.shape == shape and entry.kind != "parameter"

    peak_bytes = ledger.bytes_at(ledger.peak)
    size = sum(entry.bytes for entry in ledger.alive(ledger.peak) if is_of_scores(entry))
    if size * LARGE_SCORES <= peak_bytes:
        return None
    cut = (replace(one, bytes=one.bytes // workload.seq) if is_of_scores(one) else one for one in ledger.entries)
    least = max(bytes_at_moments(len(ledger.moments), ((one.born, one.freed, one.bytes) for one in cut)))
    return ALL_SCORES.format(
        seq=workload.seq,
        size=format_bytes(size),
        saved=format_bytes(peak_bytes - least),
        peak=format_bytes(least),
    )
