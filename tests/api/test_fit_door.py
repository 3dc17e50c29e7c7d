"""What `fit` is given: values of any type answer or are one clear error."""

import pytest

import headwise
from headwise.api.fit_door import (
    adapters_of,
    check_devices,
    check_flags,
    check_paths,
    check_progress,
    check_step,
    check_sweep,
    find_fit_device,
)
from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.workload import Lora
from headwise.errors import ConfigError

GIB = 2**30


def refused(call, *args, **settings):
    """Return the text of the one clear line with which something is refused."""
    with pytest.raises(ConfigError) as raised:
        call(*args, **settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("gpu", [None, 5, 1.5, True, b"t4", ["t4"], {}])
def test_a_device_of_another_type_is_refused(gpu):
    for memory in (None, "24GiB"):
        assert refused(find_fit_device, gpu, memory).startswith(
            'gpu must be a name of the catalogue, "here" or a Device; got '
        )


@pytest.mark.parametrize("memory", [24, 24.0, 24 * GIB, True, b"24GiB", ["24GiB"]])
def test_a_memory_of_another_type_is_refused(memory):
    for gpu in ("here", "t4", DEVICES["t4"]):
        assert 'gpu_memory must be a text with a unit, as "24GiB"; got ' in refused(find_fit_device, gpu, memory)


def test_a_memory_beside_a_device_is_the_devices_memory_in_any_form():
    for gpu in ("t4", " T4", DEVICES["t4"]):
        device = find_fit_device(gpu, "8GiB")
        assert (device.name, device.memory_bytes, device.compute_capability) == ("t4", 8 * GIB, (7, 5))
    for gpu in ("here", " HERE "):
        assert find_fit_device(gpu, "8GiB").name == "custom"
    assert find_fit_device(DEVICES["t4"], None) is DEVICES["t4"]


def test_unknown_fields_of_a_step_are_named_with_those_that_there_are():
    text = refused(headwise.fit, "gpt2", gpu="t4", precison="bf16", drop=0.1)
    assert text.endswith("; got precison, drop")
    assert "phase, precision, optimizer" in text
    assert "batch" not in text and "seq" not in text  # parameters of `fit` itself


def test_two_ranks_are_refused():
    assert "lora_rank" in refused(check_step, {"lora": object()}, lora_rank=8)
    check_step({"lora": None}, lora_rank=8)


@pytest.mark.parametrize("rank", [0, -1, True, 2**40])
def test_a_rank_that_is_none_is_refused_by_the_name_it_was_given_by(rank):
    assert refused(check_step, {}, lora_rank=rank).startswith("lora_rank must be ")


@pytest.mark.parametrize("num_gpus", [0, 1, -3, 2.0, None, True, 2**30])
def test_a_step_is_spread_over_two_devices_at_least(num_gpus):
    for shard in (None, "zero3"):
        assert refused(check_devices, num_gpus, shard=shard).startswith("num_gpus must be ")
    check_devices(2, shard="tensor")
    assert refused(check_devices, 8, shard="fsdp").startswith('shard must be "zero1" or ')


def test_a_model_without_queries_and_values_of_its_own_is_told_what_to_do():
    text = refused(adapters_of, preset("deepseek-v3"), 8)
    assert text.startswith("lora_rank needs a model that projects queries and values")
    assert "deepseek-v3 does not: leave it out, or " in text
    assert adapters_of(preset("gpt2"), 8) == adapters_of(None, 8) == Lora(rank=8, targets=("q_proj", "v_proj"))
    assert adapters_of(preset("deepseek-v3"), None) is None


@pytest.mark.parametrize("sweep", ["batch=1..4", b"batch=1..4", 5, [5], ["batch=1..4", None]])
def test_a_sweep_is_a_sequence_of_texts(sweep):
    assert "sweep must be a sequence of ranges" in refused(check_sweep, sweep)
    check_sweep(("batch=1..4", "seq=8"))
    check_sweep(None)


def test_flags_paths_and_progress_are_what_they_should_be(tmp_path):
    assert "verify must be True or False; got 1" in refused(check_flags, head=True, verify=1)
    assert "out must be a path; got 5" in refused(check_paths, history=tmp_path, out=5)
    assert "progress must be a function" in refused(check_progress, 5)
    check_progress(None)
