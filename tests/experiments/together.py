"""Runs of two processes together, for test_distributed: `torchrun --nproc-per-node 2 together.py FOLDER`."""

import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path

import torch

from headwise.errors import ConfigError
from headwise.experiments.compare import Arm, Comparison, run_comparison
from headwise.experiments.distributed import DistributedEngine, processes_of, run_distributed
from headwise.experiments.engine import Job
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.run import RunSettings, run
from headwise.experiments.sequence_tasks import Transduction

TASK = Transduction(min_len=1, max_tokens=5, vocab_size=11)
SETTINGS = RunSettings(
    task=TASK,
    model=transformer_for(TASK, embed_dim=12, num_heads=3, num_layers=2),
    recipe=Recipe(steps=5, batch_size=12, accumulate=3, learning_rate=0.01, warmup_steps=2, evaluate_every=2),
    num_validation=13,
    num_test=17,
)
DROPPED = dataclasses.replace(
    SETTINGS, model=transformer_for(TASK, embed_dim=12, num_heads=3, num_layers=2, dropout_p=0.3)
)


COMPARISON = Comparison(
    name="together",
    task=TASK,
    arms=tuple(
        Arm(name=f"{count} heads", model=transformer_for(TASK, embed_dim=12, num_heads=count)) for count in (1, 3)
    ),
    recipe=Recipe(steps=2, batch_size=4, warmup_steps=1, evaluate_every=2),
    seeds=(0,),
    learning_rates=(0.01, 0.02),
    num_validation=3,
    num_test=3,
)


class StoppedError(Exception):
    pass


def refuse():
    raise ConfigError(f"no, says process {os.environ['RANK']}")


def stop(done, total):
    if done == 3:  # after the state of step 2, which is what the run goes on from
        raise StoppedError


def main(folder):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rank = int(os.environ["RANK"])
    folder = folder / f"rank-{rank}"  # the first one's is written, no other
    results = {}
    with processes_of("ddp"):  # one group for all
        for kind in ("ddp", "fsdp"):
            results[kind] = run_distributed(SETTINGS, folder / kind, sharding=kind).to_dict()
            straight = run_distributed(DROPPED, folder / f"{kind}-straight", sharding=kind)
            with processes_of(kind) as (processes, device):
                try:
                    run(DROPPED, folder / f"{kind}-again", progress=stop, device=device, processes=processes)
                except StoppedError:
                    again = run(DROPPED, folder / f"{kind}-again", device=device, processes=processes)
            results[f"{kind}-straight"] = straight.without_measurements().to_dict()
            results[f"{kind}-again"] = again.without_measurements().to_dict()
        jobs = [Job(settings=SETTINGS, folder=folder / "ddp")]
        with DistributedEngine().together() as processes:
            results["first"] = processes.first(lambda: rank)
            try:
                processes.first(refuse)
            except ConfigError as error:
                results["refused"] = str(error)
        compared = run_comparison(COMPARISON, folder.parent / "compared", engine=DistributedEngine())
        results["compared"] = compared.to_dict()
        results["read"] = DistributedEngine().run_all(jobs)[0].to_dict()
    (folder.parent / f"results-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # all is written; a thread of torch's that is still at work may abort an interpreter that cleans up
