import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.model import DTYPE_BYTES
from headwise.config.presets import preset
from headwise.cost.kv import dtype_bytes, kv_cache_bytes, kv_cache_bytes_per_token, score_matrix_bytes
from headwise.errors import ConfigError

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "seq", "gib"),
    [
        ("llama-2-7b", 4096, 2.0),
        ("llama-3-8b", 8192, 1.0),
        ("qwen3-4b", 32768, 4.5),  # its head size is 128, not 2560 / 32
        ("mistral-nemo-12b", 131072, 20.0),  # its head size is 128, not 5120 / 32
    ],
)
def test_known_caches_of_one_text_in_bfloat16(name, seq, gib):
    assert kv_cache_bytes(preset(name), batch=1, seq=seq, dtype="bfloat16") == gib * GIB


def test_one_token_of_llama_3_70b_takes_327680_bytes():
    assert kv_cache_bytes_per_token(preset("llama-3-70b")) == 327_680


@pytest.mark.parametrize(("seq", "cached"), [(1, 1), (4095, 4095), (4096, 4096), (4097, 4096), (32768, 4096)])
def test_a_windowed_layer_keeps_no_more_than_its_window(seq, cached):
    # Mistral 7B: 32 layers, 8 key/value heads of 128, window 4096
    assert kv_cache_bytes(preset("mistral-7b"), batch=3, seq=seq) == 3 * cached * 32 * 8 * 2 * 128 * 2


def test_layers_with_and_without_a_window_keep_their_own():
    config = read_config(
        {"model_type": "qwen3", "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3}
        | {"head_dim": 10, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
        name="m",
    )
    assert kv_cache_bytes(config, batch=1, seq=11, dtype="float32") == (2 * 11 + 3 * 7) * 3 * 2 * 10 * 4
    assert kv_cache_bytes_per_token(config, dtype="float32") == 5 * 3 * 2 * 10 * 4


def test_the_cache_is_as_large_as_the_one_that_transformers_fills():
    sizes = {"vocab_size": 11, "hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}
    sizes |= {"num_hidden_layers": 3, "intermediate_size": 13, "pad_token_id": 0}
    model = transformers.LlamaModel(transformers.LlamaConfig(**sizes)).eval()
    with torch.no_grad():
        cache = model(torch.ones(5, 7, dtype=torch.long), use_cache=True)
    cache = getattr(cache, "past_key_values", None) or cache.cache
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert (
        kv_cache_bytes(read_config({"model_type": "llama", **sizes}, name="m"), batch=5, seq=7, dtype="float32") == held
    )


def test_an_encoder_keeps_nothing():
    assert kv_cache_bytes(preset("bert-base"), batch=1, seq=512) is None
    assert kv_cache_bytes_per_token(preset("bert-base")) is None


def test_the_configs_own_dtype_is_the_default_and_bfloat16_where_it_has_none():
    gpt2 = preset("gpt2")
    assert gpt2.dtype is None
    assert kv_cache_bytes_per_token(gpt2) == kv_cache_bytes_per_token(gpt2, "bfloat16")
    config = read_config({"model_type": "llama", "dtype": "float32"}, name="m")
    assert kv_cache_bytes_per_token(config) == 2 * kv_cache_bytes_per_token(config, "float16")


@pytest.mark.parametrize(("seq", "gib"), [(1024, 2), (2048, 8)])
def test_score_matrix_of_16_heads_at_batch_32_in_float32(seq, gib):
    scores = score_matrix_bytes(batch=32, num_heads=16, query_len=seq, key_len=seq, dtype="float32")
    assert scores == gib * GIB
    assert score_matrix_bytes(batch=32, num_heads=12, query_len=seq, key_len=seq, dtype="float32") == scores * 12 // 16


def test_score_matrix_is_one_number_for_each_query_key_and_head():
    assert score_matrix_bytes(batch=2, num_heads=3, query_len=5, key_len=7, dtype="float16") == 2 * 3 * 5 * 7 * 2


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_a_dtype_has_the_bytes_that_torch_gives_it(name):
    assert dtype_bytes(name) == getattr(torch, name).itemsize


@pytest.mark.parametrize("name", ["fp32", "float7", "", "torch.float32"])
def test_an_unknown_dtype_is_answered_with_those_there_are(name):
    with pytest.raises(ConfigError, match=f"dtype must be one of float64, .*; got '{name}'"):
        dtype_bytes(name)
    with pytest.raises(ConfigError, match="dtype must be one of"):
        kv_cache_bytes(preset("gpt2"), batch=1, seq=1, dtype=name or "x")


@pytest.mark.parametrize(("batch", "seq"), [(0, 5), (1, 0), (-1, 5), (True, 5)])
def test_batch_and_length_are_positive_whole_numbers(batch, seq):
    with pytest.raises(ConfigError, match="must be"):
        kv_cache_bytes(preset("gpt2"), batch=batch, seq=seq)
