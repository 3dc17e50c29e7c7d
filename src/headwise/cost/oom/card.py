"""find_card: the device that ran out of memory, from the capacity that the message tells."""

from dataclasses import replace

from headwise.cost.devices import DEVICES, custom_device
from headwise.cost.oom.results import OomMessage
from headwise.cost.results import Device

SAME_CARD = 0.02  # how near a capacity must be to a card's to take it for one: drivers keep a little more or less back
KINDS = {"cuda": "cuda", "hip": "rocm", "mps": "mps"}


def find_card(message: OomMessage) -> Device | None:
    """Return the device of the catalogue whose memory is nearest, with the memory that the message tells.

    A limit that is set for the process counts in place of the capacity. A device of no known size is one of the size
    alone; None where the message tells none.
    """
    capacity = message.capacity_bytes
    limit = message.allowed_bytes if message.allowed_bytes is not None else capacity
    if limit is None:
        return None
    known = [device for device in DEVICES.values() if device.kind == KINDS.get(message.backend)]
    if capacity is not None and known:
        nearest = min(known, key=lambda device: abs(device.memory_bytes - capacity))
        if abs(nearest.memory_bytes - capacity) <= SAME_CARD * capacity:
            return replace(nearest, memory_bytes=limit, source="the message")
    return replace(custom_device(f"{limit}"), source="the message")
