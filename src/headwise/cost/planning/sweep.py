"""sweep_sizes: a step over a grid of batches and lengths, or images, and the edge of what fits."""

from collections.abc import Sequence
from dataclasses import replace

from headwise.config.checks import MAX_SIZE, shown
from headwise.config.model import ModelConfig
from headwise.config.vision_model import GrowingPatches, with_image
from headwise.cost.planning.edges import find_edges
from headwise.cost.planning.limits import with_image_size, with_length
from headwise.cost.planning.results import Sweep, SweepPoint
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.step.cycles import count_played
from headwise.errors import ConfigError, HeadwiseError

MAX_POINTS = 400
MAX_PLAYED_LAYERS = 4000
"""Layers that are played for a sweep, about: some seconds. Of most models a step takes 3."""
STEPS_OF_AN_EDGE = 4
"""Steps that are told to find the largest length of a batch, about."""
MAX_REPLAYED_LAYERS = 1536
"""Layers that may be replayed for the points of a sweep, beside those that its judge may replay anyway."""
MAX_TEXT = 400  # characters of a range


def sweep_sizes(
    predictor: Predictor,
    setup: Setup,
    device: Device,
    batches: tuple[int, ...] = (),
    seqs: tuple[int, ...] = (),
    *,
    judge: Judge | None = None,
) -> Sweep:
    """Predict a step at every batch with every length, and for each batch find the largest length that fits.

    Of a model of images of any size, lengths are sizes of its image; its points and edges tell the tokens.

    A length beyond the model's position table is reckoned with a longer table. Points that the predictor cannot tell
    are left out, as lengths that cannot be shared out equally among the devices of a sharding that does so.

    The points are judged from the smallest batch and length up, and before the edge; all by one judge, so that they
    agree with one another, with the edge, and with what the judge has said before.

    Args:
        predictor: tells the memory.
        setup: all else of the step.
        device: what it should fit.
        batches: texts a pass, rising. Default: the setup's own.
        seqs: tokens a text, rising, or pixels a side of an image, where it may have any size. Default: the setup's own.
        judge: of that device, with what it has judged. Default: a new one.

    Raises:
        ConfigError: more than `MAX_POINTS` points, or than can be told in some seconds; another length than an image's,
            or no point that can be told.
    """
    batches, seqs = axes_of(setup, batches, seqs)
    judge = judge or Judge(predictor, device)
    judge.allow(MAX_REPLAYED_LAYERS)
    points, refusals = [], []
    for batch in batches:
        for seq in seqs:
            point = _at(setup, batch, seq)
            try:
                verdict = judge(point)
            except HeadwiseError as error:
                refusals.append(error)
            else:
                tokens = point.workload.seq
                points.append(SweepPoint(batch=batch, seq=tokens, peak_bytes=verdict.peak_bytes, fits=verdict.fits))
    if not points:
        raise ConfigError(f"a sweep must have a point that can be told; got none: {refusals[0]}")
    told = sorted({point.batch for point in points})
    return Sweep(points=tuple(points), frontier=tuple(find_edges(judge, setup, told)))


def axes_of(setup: Setup, batches: tuple[int, ...], seqs: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of a sweep of a setup, or raise ConfigError where they are none, as `sweep_sizes`."""
    patches = setup.config.patches if setup.config is not None else None
    own = patches.image_size if isinstance(patches, GrowingPatches) else setup.workload.seq
    batches, seqs = batches or (setup.workload.batch,), seqs or (own,)
    _require_few(setup, len(batches), len(seqs))
    if setup.config is not None and isinstance(patches, GrowingPatches):
        for image in seqs:
            with_image(setup.config, image)  # refuses what is no whole number of places
        return batches, seqs
    if patches is not None and seqs != (patches.num_tokens,):
        raise ConfigError(
            f"a length must be an image's {patches.num_tokens} tokens; got {', '.join(map(str, seqs[:5]))}"
        )
    return batches, seqs


def _require_few(setup: Setup, num_batches: int, num_seqs: int) -> None:
    num_points = num_batches * num_seqs
    most, reason = MAX_POINTS, ""
    num_played = 1 if setup.config is None else count_played(setup.config, setup.workload)
    num_layers = num_played * (num_points + num_batches * STEPS_OF_AN_EDGE)
    if num_layers > MAX_PLAYED_LAYERS:
        most, reason = (
            min(most, max(1, num_points * MAX_PLAYED_LAYERS // num_layers)),
            " of this model, to end in seconds",
        )
    if num_points > most:
        raise ConfigError(
            f"a sweep must have at most {most} points{reason}; got {num_batches} batches x {num_seqs} lengths"
        )


def _at(setup: Setup, batch: int, size: int) -> Setup:
    """Return a setup at a batch and a length, or a size of image where it may have any."""
    at_batch = replace(setup, workload=replace(setup.workload, batch=batch))
    if setup.config is not None and isinstance(setup.config.patches, GrowingPatches):
        return with_image_size(at_batch, size)
    return with_length(at_batch, size)


def axis_of(config: ModelConfig | None) -> str:
    """Return what a sweep goes over beside batches: "image" of a model of images of any size, else "seq"."""
    is_growing = config is not None and isinstance(config.patches, GrowingPatches)
    return "image" if is_growing else "seq"


def parse_axes(texts: Sequence[str], *, size: str = "seq") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read the axes of a sweep, "batch=1..64" and "seq=512,1024": its batches and its lengths, () for one left out.

    Args:
        texts: the axes.
        size: name of the second one, from `axis_of`.

    Raises:
        ConfigError: an axis has another name or comes twice, or its sizes cannot be read.
    """
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sign, sizes = text.partition("=") if isinstance(text, str) else ("", "", "")
        name = name.strip()
        if not sign or name not in ("batch", size):
            raise ConfigError(f'a sweep must go over batch or {size}, as in "batch=1..64"; got {shown(text)}')
        if name in axes:
            raise ConfigError(f"a sweep must name {name} once; got {shown(text)} beside another")
        axes[name] = parse_range(sizes)
    return axes.get("batch", ()), axes.get(size, ())


def parse_range(text: str) -> tuple[int, ...]:
    """Read the sizes of a sweep: "1..64" doubles from 1 to 64, "1,2,8" is a list, "8" one size.

    A range that no doubling ends at ends with its last number all the same: "512..3000" is 512, 1024, 2048, 3000.

    Raises:
        ConfigError: the text is none of these, a size is not a whole number above 0, or a range falls.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT:
        raise ConfigError(f'a range must be written as "1..64" or "1,2,8"; got {shown(text)}')
    first, dots, last = text.partition("..")
    if not dots:
        return tuple(sorted({_size(part, text) for part in text.split(",")}))
    low, high = _size(first, text), _size(last, text)
    if low > high:
        raise ConfigError(f"a range must rise; got {shown(text)}")
    sizes = [low]
    while 2 * sizes[-1] < high:
        sizes.append(2 * sizes[-1])
    return tuple(sizes) if sizes[-1] == high else (*sizes, high)


def _size(part: str, text: str) -> int:
    digits = part.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_SIZE))):
        raise ConfigError(f'a range must be whole numbers as in "1..64" or "1,2,8"; got {shown(text)}')
    size = int(digits)
    if not 1 <= size <= MAX_SIZE:
        raise ConfigError(f"a size must be between 1 and {MAX_SIZE}; got {shown(text)}")
    return size
