"""Changes of the size of a step: fewer texts at once, fewer texts, shorter ones. Each by as little as makes it fit."""

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt

from headwise.config.vision_model import GrowingPatches, MapPlaces
from headwise.cost.planning.limits import largest_batch, largest_image, largest_seq, with_image_size, with_length
from headwise.cost.planning.option import Made, Option, Place
from headwise.cost.planning.setup import Setup

NOT_FOUND = "left out to answer in time: the largest {} that fits was not found"


def list_size_changes() -> Iterator[Option]:
    """Give every change of the size of a step."""
    yield Option(
        key="accumulate", topic="texts", words="accumulate gradients over smaller passes", list="same", make=_accumulate
    )
    yield Option(key="batch", topic="texts", words="smaller batch", list="alters", make=_shrink_batch)
    yield Option(key="seq", topic="length", words="shorter length", list="alters", make=_shorten)


def _accumulate(setup: Setup, place: Place) -> Made | str:
    """Split the batch into the fewest equal passes that fit, or into passes of one text."""
    workload = setup.workload
    if workload.phase != "train":
        return f"a {workload.phase} has no gradients to accumulate"
    if workload.batch == 1:
        return "the batch is one text, which cannot be split"
    passes = _divisors(workload.batch)[1:]
    low, high = 0, len(passes) - 1  # the most passes are taken if none fits
    if place.judge.fits(_split(setup, passes[high])) != "yes":
        low = high
    while low < high:
        middle = (low + high) // 2
        if place.judge.fits(_split(setup, passes[middle])) == "yes":
            high = middle
        else:
            low = middle + 1
    count = passes[high]
    words = f"accumulate over {count} passes of {workload.batch // count} text{'s' * (count < workload.batch)}"
    if setup.config is not None and isinstance(setup.config.patches, MapPlaces):
        return Made(_split(setup, count), f"{words}, which batch norms see apart", "alters")
    return Made(_split(setup, count), words, "same")


def _divisors(number: int) -> list[int]:
    """Return all whole numbers that divide a number, in order."""
    lower = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return sorted({*lower, *(number // one for one in lower)})


def _split(setup: Setup, count: int) -> Setup:
    workload = setup.workload
    changed = replace(workload, batch=workload.batch // count, accumulation=workload.accumulation * count)
    return replace(setup, workload=changed)


def _shrink_batch(setup: Setup, place: Place) -> Made | str:
    """Take as few texts less as makes the step fit; half of them where it does."""
    before = setup.workload.batch
    if before == 1:
        return "the batch is one text as it is"
    if place.judge.fits(setup) == "yes":
        after = before // 2
    else:
        found = largest_batch(place.judge.predictor, setup, place.device, judge=place.judge, limit=before - 1)
        if found is None:
            return NOT_FOUND.format("batch")
        after = found or 1
    return Made(_with_batch(setup, after), f"batch {after} in place of {before}", "alters")


def _with_batch(setup: Setup, batch: int) -> Setup:
    return replace(setup, workload=replace(setup.workload, batch=batch))


def _shorten(setup: Setup, place: Place) -> Made | str:
    """Take as few tokens less as makes the step fit; half of them where it does."""
    before = setup.workload.seq
    if setup.config is not None and isinstance(setup.config.patches, GrowingPatches):
        return _shrink_image(setup, setup.config.patches, place)
    if setup.config is not None and setup.config.patches is not None:
        return f"every image has {before} tokens"
    step = setup.length_step
    if before == step:
        return f"the length is {before} tokens, one for each device" if step > 1 else "the length is one token as it is"
    if place.judge.fits(setup) == "yes":
        after = before // step // 2 * step
    else:
        found = largest_seq(place.judge.predictor, setup, place.device, judge=place.judge, limit=before - 1)
        if found is None:
            return NOT_FOUND.format("length")
        after = found or step
    return Made(with_length(setup, after), f"length {after} in place of {before}", "alters")


def _shrink_image(setup: Setup, patches: GrowingPatches, place: Place) -> Made | str:
    """Take as few pixels less as makes the step fit; half of them where it does."""
    before, step = patches.image_size, patches.patch_size
    if before == step:
        return f"the image is {before} pixels a side, one place, as it is"
    if place.judge.fits(setup) == "yes":
        after = before // step // 2 * step
    else:
        found = largest_image(place.judge.predictor, setup, place.device, judge=place.judge, limit=before - 1)
        if found is None:
            return NOT_FOUND.format("image")
        after = found or step
    return Made(with_image_size(setup, after), f"image {after} in place of {before}", "alters")
