"""Two processes together train as one does, whole modules or shards, and go on after a stop to the same numbers."""

import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from headwise.api.compare import compare
from headwise.errors import ConfigError
from headwise.experiments.comparison_folder import COMPARISON
from headwise.experiments.distributed import DistributedEngine, run_distributed
from headwise.experiments.engine import Engine
from headwise.experiments.processes import Processes
from headwise.experiments.run import run
from headwise.experiments.run_folder import BEST, METRICS, STATE

SCRIPT = Path(__file__).with_name("together.py")
DOCS = Path(__file__).parents[2] / "docs" / "training.md"
SETTINGS = runpy.run_path(str(SCRIPT))["SETTINGS"]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return the folder of the runs of two processes, and what each of them answered."""
    folder = tmp_path_factory.mktemp("together")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, [json.loads((folder / f"results-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder and the result of the same run by one process, in float64."""
    folder = tmp_path_factory.mktemp("alone")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return folder, run(SETTINGS, folder)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(together, alone, kind):
    """In float64, where sums of some 100 terms in another order differ by 100 * 2^-53 of their terms.

    AdamW divides a gradient by its own size plus 1e-8: a difference d of a gradient moves a weight by at most
    rate * d / 1e-8 a step. With gradients below 1 (they are clipped to a norm of 1) that is for 5 steps at a rate of
    0.01 at most 5 * 0.01 * 100 * 2^-53 / 1e-8 = 5.6e-8.
    """
    most = 5 * 0.01 * 100 * 2**-53 / 1e-8
    folder, results = together
    mine = load_file(alone[0] / BEST)
    theirs = load_file(folder / "rank-0" / kind / BEST)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=most)
    # a loss is a mean of less than 100 terms that move by less than 100 weights of at most 1 in size each
    for line, expected in zip(results[0][kind]["curve"], alone[1].curve, strict=True):
        assert line == pytest.approx(expected, rel=0, abs=100 * most)
    assert results[0][kind]["test"] == pytest.approx(alone[1].test, rel=0, abs=100 * most)
    assert results[0][kind]["num_parameters"] == alone[1].num_parameters


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_run_of_two_processes_goes_on_after_a_stop_to_the_same_numbers(together, kind):
    folder, results = together
    assert results[0][f"{kind}-again"] == results[0][f"{kind}-straight"]
    lines = [(folder / "rank-0" / f"{kind}-{how}" / METRICS).read_text() for how in ("again", "straight")]
    assert lines[0] == lines[1]


def test_the_first_process_alone_writes_and_all_have_the_result(together):
    folder, results = together
    assert results[0] == results[1]
    assert results[0]["read"] == results[0]["ddp"]
    assert not (folder / "rank-1").exists()


def test_a_run_of_two_processes_does_not_go_on_in_one(together, tmp_path):
    settings = runpy.run_path(str(SCRIPT))["DROPPED"]
    shutil.copytree(together[0] / "rank-0" / "ddp-again", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(ConfigError, match="in as many processes as it began with, 2; got 1"):
        run(settings, tmp_path / "run")


def test_what_the_docs_show_runs_under_what_torchrun_sets(tmp_path, monkeypatch):
    """As the only process, for which torchrun sets the same variables."""
    (shown,) = re.findall(r"```text\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    names = {"settings": SETTINGS}
    exec(shown, names)
    assert names["result"].steps == 5 and not torch.distributed.is_initialized()
    assert isinstance(DistributedEngine(), Engine)


def test_what_cannot_be_spread_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="run this by torchrun"):
        run_distributed(SETTINGS, tmp_path)
    with pytest.raises(ConfigError, match="rank must be from 0 to 1; got 2"):
        Processes(rank=2, world_size=2)
    sharded = Processes(rank=0, world_size=2, sharding="fsdp")
    with pytest.raises(ConfigError, match="train GRU with ddp"):
        sharded.spread(nn.GRU(3, 3))
    with pytest.raises(ConfigError, match='got "amp-fp16", for which ddp serves'):
        sharded.spread(nn.GRU(3, 3), "amp-fp16")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_process_draws_dropout_of_its_own(together, kind):
    """As it is kept in the last state: else both would drop the same places of their shares."""
    state = load_file(together[0] / "rank-0" / f"{kind}-straight" / STATE)
    assert not torch.equal(state["rng.cpu.0"], state["rng.cpu.1"])


def test_what_the_first_process_does_is_told_to_all(together):
    """What it returns, and what it raises; the others do nothing."""
    for one in together[1]:
        assert one["first"] == 0 and one["refused"] == "no, says process 0"


def test_processes_do_a_comparison_together_in_one_folder(together):
    """The first process alone opens, reads and writes the folder; what came out is in each."""
    folder, results = together
    first, second = (one["compared"] for one in results)
    assert first == second == json.loads((folder / "compared" / COMPARISON).read_text())["result"]
    assert [arm["name"] for arm in first["arms"]] == ["1 heads", "3 heads"]
    assert len(list((folder / "compared").glob("arm-*"))) == 2 * (2 + 1)


def test_the_command_says_what_serves_under_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="call run_comparison with a DistributedEngine"):
        compare("scale")
