"""A run knows the machine that it is on."""

import datetime as dt
import runpy
from pathlib import Path

import pytest
import torch

from headwise.errors import ConfigError
from headwise.experiments.engine import Job, LocalEngine
from headwise.experiments.machine import device_for, environment, rng_devices


def test_a_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_for(None) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_for(None) == torch.device("cuda")
    assert device_for("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_for("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="got 'cuda:2' of 2 GPUs"):
        device_for("cuda:2")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_trains_on_the_device_that_it_is_given(tmp_path, workers):
    """Told by what it refuses, before anything is written."""
    settings = runpy.run_path(str(Path(__file__).with_name("test_run.py")))["SETTINGS"]
    engine = LocalEngine(workers=workers, device="cuda:99")
    with pytest.raises(ConfigError, match="got 'cuda:99' of"):
        engine.run_all([Job(settings=settings, folder=tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["gpu", "mps", ""])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(ConfigError, match="device must be cpu, cuda, or cuda:0 and so on; got"):
        device_for(device)


def test_the_random_numbers_of_a_gpu_are_put_back_too():
    assert rng_devices(torch.device("cpu")) == []
    assert rng_devices(torch.device("cuda", 1)) == [torch.device("cuda", 1)]


def test_the_environment_is_told_with_its_date():
    found = environment()
    assert found["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    assert found["headwise"] and found["processor"] and found["device"] == "cpu"
    now = dt.datetime.now(dt.UTC)
    assert abs(now - dt.datetime.fromisoformat(found["date"])) < dt.timedelta(minutes=1)
