"""The benchmark of inspection compares like with like: its plain statistics of full maps are ours."""

import copy
import importlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from headwise.inspection.capture.readers import open_reader
from headwise.loading.module import load_sample

ROOT = Path(__file__).parents[1]
OURS = {
    "entropy": "entropy",
    "normalised": "normalized_entropy",
    "effective keys": "num_effective_keys",
    "sparsity": "sparsity",
    "distance": "distance",
    "spread": "distance_spread",
    "sink": "sink_mass",
    "largest": "max_weight",
    "near": "diagonal_mass",
    "block": "block_mass",
}


@torch.no_grad()
def test_statistics_of_full_maps_are_those_in_blocks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    benchmark = importlib.import_module("benchmarks.inspect")
    loaded = load_sample()
    inputs = benchmark.random_texts(2, 29)
    eager = AutoModel.from_config(copy.deepcopy(loaded.module.config), attn_implementation="eager").eval()
    eager.load_state_dict(loaded.module.state_dict())
    sums = benchmark.sums_of(open_reader(loaded.module, inputs), inputs)
    assert loaded.module.config._attn_implementation == "sdpa"
    for layer, plain in enumerate(benchmark.sums_of_maps(eager, inputs)):
        heads = sums[layer].to_statistics(layer)
        for name, field in OURS.items():
            # the peer sums 29 terms in float32, of distances below 29: off by less than 29 x 6e-8 of the sum; the
            # weights of eager and of a fused pass differ by some 1e-6 of themselves in the sixth layer
            ours = [getattr(head, field) for head in heads]
            assert plain[name].tolist() == pytest.approx(ours, rel=2e-5, abs=2e-5), (layer, name)
