"""find_card: the device that ran out of memory, from the capacity that the message tells."""

from dataclasses import replace

from headwise.cost.devices import DEVICES, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES
from headwise.cost.oom.results import OomMessage
from headwise.cost.results import Device
from headwise.results import BYTES_PER_GIB, format_bytes

SAME_CARD = 0.02  # how near a capacity must be to a card's to take it for one: drivers keep a little more or less back
CLEARLY_OTHER = 0.01  # how far a capacity is at least from that of another card, where it is precisely one's own
PRINTED_BYTES = BYTES_PER_GIB // 100  # a capacity in GiB is printed to this
KINDS = {"cuda": "cuda", "hip": "rocm", "mps": "mps"}
NAMES = {"cuda": "a GPU", "hip": "an AMD GPU", "mps": "a Mac", "xpu": "an Intel GPU", "npu": "an NPU"}

ASSUMED = "The device is taken to be {names}, from its capacity of {size}: name it with gpu (--gpu) if it is another."
SEVERAL = (
    "Several devices have about {size} ({names}), and their kernels differ: which it is cannot be told, and it is "
    "reckoned as {kernels}; name it with gpu (--gpu)."
)
UNKNOWN = (
    "No device of {size} is known: it is reckoned as {kernels}; name it with gpu (--gpu) if it is one of the catalogue."
)
IMPOSSIBLE = "No device has {size}, which the message tells: name it with gpu (--gpu) to know what fits."
CUDA_KERNELS = "one of that memory with the kernels of compute capability 8.0"
OTHER_KERNELS = "one of that memory, with CUDA's kernels in place of its own, which are not known here"


def find_card(message: OomMessage, capability: tuple[int, int] | None = None) -> Device | None:
    """Return the device of the catalogue whose memory is nearest, with the memory that the message tells.

    A limit that is set for the process counts in place of the capacity. Where no device of the catalogue has about this
    memory, or several have whose kernels differ, it is one of the memory alone, of no known compute capability. None:
    the message tells no memory, or one that no device has.

    Args:
        message: what is known of the device.
        capability: its compute capability, where that is known.
    """
    limit = _limit_of(message)
    if limit is None or not MIN_MEMORY_BYTES <= limit <= MAX_MEMORY_BYTES:
        return None
    known = _cards_of(message, capability)
    if known and len({card.compute_capability for card in known}) == 1:
        return replace(known[0], memory_bytes=limit, source="the message")
    return Device(
        name="custom",
        description=f"{NAMES.get(message.backend, 'a device')} of {format_bytes(limit)}",
        memory_bytes=limit,
        kind=KINDS.get(message.backend, "cuda"),  # type: ignore[arg-type]  # one of KINDS, all of them a Device's
        source="the message",
        date="",
        compute_capability=capability,
    )


def card_note(message: OomMessage, capability: tuple[int, int] | None = None) -> str | None:
    """Say which device is assumed, or why none is; None where the message tells nothing of its memory."""
    limit = _limit_of(message)
    if limit is None:
        return None
    device = find_card(message, capability)
    if device is None:
        return IMPOSSIBLE.format(size=format_bytes(limit))
    size = format_bytes(limit if message.capacity_bytes is None else message.capacity_bytes)
    names = " or ".join(card.description for card in _cards_of(message, capability))
    if device.name != "custom":
        return ASSUMED.format(names=names, size=size)
    is_cuda = message.backend == "cuda"
    kernels = CUDA_KERNELS if is_cuda and capability is None else OTHER_KERNELS
    if is_cuda and capability is not None:
        kernels = "one of that memory with the kernels of compute capability {}.{}".format(*capability)
    return (SEVERAL if names else UNKNOWN).format(size=size, names=names, kernels=kernels)


def _limit_of(message: OomMessage) -> int | None:
    return message.capacity_bytes if message.allowed_bytes is None else message.allowed_bytes


def _cards_of(message: OomMessage, capability: tuple[int, int] | None) -> list[Device]:
    """Return the devices of the catalogue that have about the capacity, the nearest first."""
    capacity, kind = message.capacity_bytes, KINDS.get(message.backend)
    if not capacity:
        return []
    near = [
        device
        for device in DEVICES.values()
        if device.kind == kind
        and abs(device.memory_bytes - capacity) <= SAME_CARD * capacity
        and capability in (None, device.compute_capability)
    ]
    same = [device for device in near if abs(device.memory_bytes - capacity) <= PRINTED_BYTES]
    others = [device for device in near if device not in same]
    is_clear = all(abs(device.memory_bytes - capacity) >= CLEARLY_OTHER * capacity for device in others)
    return sorted(same if same and is_clear else near, key=lambda device: abs(device.memory_bytes - capacity))
