"""A script, written once, allocates at every batch and length what a play of the step allocates."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.oom.scripts import write_script
from headwise.cost.reserved import step_events
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload

TRAIN = Workload(batch=23, seq=640, precision="bf16", loss="cross_entropy")


def cut(name, num_layers=2):
    config = preset(name)
    return replace(config, blocks=config.blocks[:num_layers])


def played(config, workload):
    return [num_bytes for _, num_bytes in step_events(config, workload)]


def written(config, workload, *, batch, seq, **told):
    script = write_script(config, workload, **told)
    sizes = [size if isinstance(size, int) else size.bytes_at(batch, seq) for size in script.sizes]
    return [None if place is None else sizes[place] for _, place in script.events]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", {"attention": "eager"}),
        ("gpt2", {"precision": "amp-bf16", "checkpoint": "full"}),
        ("llama-3.2-1b", {"attention": "eager"}),
        ("llama-3.2-1b", {"attention": "eager", "phase": "prefill", "loss": "sum"}),
        ("llama-3.2-1b", {"precision": "fp32"}),
    ],
)
@pytest.mark.parametrize("batch", [1, 23])
def test_a_script_has_the_sizes_of_a_play_in_its_order(name, settings, batch):
    """At 640 tokens, a multiple of what kernels round up to; of others the test after next."""
    config, workload = cut(name), replace(TRAIN, batch=batch, **settings)
    assert written(config, workload, batch=batch, seq=640) == played(config, workload)


@pytest.mark.parametrize(("seq", "reaches"), [(256, False), (8192, True)])
def test_texts_shorter_than_the_windows_have_a_script_of_their_own(seq, reaches):
    config, workload = cut("mistral-7b"), replace(TRAIN, batch=3, seq=seq)
    assert written(config, workload, batch=3, seq=seq, reaches_windows=reaches) == played(config, workload)
    assert written(config, workload, batch=3, seq=seq, reaches_windows=not reaches) != played(config, workload)


def test_a_script_fails_where_the_step_does_whatever_the_length():
    config = cut("gpt2")
    for seq in (100, 333, 1000):
        workload = replace(TRAIN, seq=seq, precision="fp32")
        peak = replay(step_events(config, workload)).reserved_peak_bytes
        script = write_script(config, workload)
        for share in (0.1, 0.4, 0.7, 0.97):
            room = int(share * peak)
            truth = replay(step_events(config, workload), capacity_bytes=room).out_of_memory
            found = script.find_failure(workload.batch, seq, room)
            assert (found.key, found.requested_bytes) == (truth.key, truth.requested_bytes)
            # 2 layers keep a sum for each of 23 x 12 rows of heads, of at most 31 tokens more: 68 kB, a block each
            assert 0 <= truth.allocated_bytes - found.allocated_bytes <= 2 * (23 * 12 * 31 * 4 + 512)
        assert script.find_failure(workload.batch, seq, peak) is None


def test_the_weights_and_inputs_come_first_and_are_counted():
    config = cut("gpt2")
    script = write_script(config, TRAIN)
    records = play_step(config, config.blocks, TRAIN).records
    kinds = [records[index].kind for (_, index), _ in script.events[: script.num_loading + 1]]
    assert set(kinds[:-1]) == {"parameter", "input"}
    assert kinds[-1] not in ("parameter", "input")
