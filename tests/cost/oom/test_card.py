"""find_card: the device of a message, from its capacity alone; what is assumed, and what cannot be told."""

import pytest

from headwise.cost.oom.card import card_note, find_card
from headwise.cost.oom.results import OomMessage

GIB = 2**30


def message(capacity, backend="cuda", allowed=None):
    return OomMessage(
        backend=backend,
        wording="made up",
        requested_text="1.00 GiB",
        requested_low_bytes=GIB,
        requested_high_bytes=GIB,
        capacity_bytes=None if capacity is None else round(capacity * GIB),
        allowed_bytes=None if allowed is None else round(allowed * GIB),
    )


@pytest.mark.parametrize(
    ("capacity", "backend", "name", "capability"),
    [
        (31.74, "cuda", "v100-32gb", (7, 0)),  # precisely its own; an RTX 5090 has 1.3 % less
        (14.56, "cuda", "t4", (7, 5)),
        (14.75, "cuda", "t4", (7, 5)),  # 1.3 % more, and nothing else near
        (10.76, "cuda", "rtx-2080-ti", (7, 5)),
        (47.52, "cuda", "rtx-a6000", (8, 6)),
        (191.69, "hip", "mi300x", None),
        (10.67, "mps", "apple-m-16gb", None),
    ],
)
def test_a_capacity_of_one_card_alone_names_it_as_an_assumption(capacity, backend, name, capability):
    card = find_card(message(capacity, backend))
    assert (card.name, card.compute_capability) == (name, capability)
    assert card.memory_bytes == round(capacity * GIB)
    note = card_note(message(capacity, backend))
    assert note.startswith(f"The device is taken to be {card.description}, from its capacity of ")
    assert "gpu (--gpu)" in note


@pytest.mark.parametrize(
    ("capacity", "names"),
    [
        (15.99, ("P100", "V100", "RTX 4080")),
        (15.78, ("P100", "V100", "RTX 4080")),  # the V100's own, from which the others are 0.7 % away
        (31.55, ("V100", "RTX 5090")),  # between them
        (79.14, ("A100", "H100")),
        (23.6, ("RTX 4090", "A30", "RTX 3090")),
    ],
)
def test_where_several_cards_have_it_none_is_named(capacity, names):
    card = find_card(message(capacity))
    assert (card.name, card.compute_capability) == ("custom", None)
    assert card.memory_bytes == round(capacity * GIB)
    note = card_note(message(capacity))
    assert note.startswith("Several devices have about ") and "gpu (--gpu)" in note
    assert all(name in note for name in names)


def test_a_known_compute_capability_decides_between_them():
    assert find_card(message(15.99), (7, 0)).name == "v100-16gb"
    assert find_card(message(15.99), (8, 9)).name == "rtx-4080"
    unknown = find_card(message(15.99), (12, 0))
    assert (unknown.name, unknown.compute_capability) == ("custom", (12, 0))
    assert "compute capability 12.0" in card_note(message(15.99), (12, 0))


@pytest.mark.parametrize(
    ("backend", "kind", "words"),
    [
        ("hip", "rocm", "an AMD GPU"),
        ("xpu", "cuda", "an Intel GPU"),
        ("npu", "cuda", "an NPU"),
        ("mps", "mps", "a Mac"),
    ],
)
def test_a_device_that_is_not_cudas_gets_no_compute_capability(backend, kind, words):
    card = find_card(message(47.0, backend))  # the memory of an RTX A6000, which it is not
    assert (card.name, card.kind, card.compute_capability) == ("custom", kind, None)
    assert card.description == f"{words} of 47.00 GiB"
    assert "with CUDA's kernels in place of its own" in card_note(message(47.0, backend))


def test_a_limit_of_the_process_counts_in_place_of_the_capacity():
    card = find_card(message(31.74, allowed=8))
    assert (card.name, card.memory_bytes) == ("v100-32gb", 8 * GIB)
    assert find_card(message(None, allowed=8)).memory_bytes == 8 * GIB


@pytest.mark.parametrize("capacity", [0, 0.0004, 2**70, 2**20 + 1])
def test_a_memory_that_no_device_has_is_none(capacity):
    assert find_card(message(capacity)) is None
    assert card_note(message(capacity)).startswith("No device has ")


def test_without_a_memory_nothing_is_assumed():
    assert find_card(message(None)) is None
    assert card_note(message(None)) is None
