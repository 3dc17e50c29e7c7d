from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.dtypes import DTYPE_BYTES
from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS, preset
from headwise.cost.kv import dtype_bytes, kv_cache_bytes, kv_cache_bytes_per_token, kv_layers, score_matrix_bytes
from headwise.errors import ConfigError

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "seq", "gib"),
    [
        ("llama-2-7b", 4096, 2.0),
        ("llama-3-8b", 8192, 1.0),
        ("qwen3-4b", 32768, 4.5),  # its head size is 128, not 2560 / 32
        ("mistral-nemo-12b", 131072, 20.0),  # its head size is 128, not 5120 / 32
        ("gemma-2-9b", 8192, 1.96875),
        ("gemma-3-27b", 131072, 10.40625),
        ("gpt-oss-120b", 131072, 4.50439453125),
        ("deepseek-v3", 131072, 8.578125),
    ],
)
def test_known_caches_of_one_text_in_bfloat16(name, seq, gib):
    assert kv_cache_bytes(preset(name), batch=1, seq=seq, dtype="bfloat16") == gib * GIB
    assert sum(layer.bytes for layer in kv_layers(preset(name), batch=1, seq=seq)) == gib * GIB


@pytest.mark.parametrize(
    ("name", "seq", "gib"),
    [("gemma-2-9b", 8192, 2.625), ("gemma-3-27b", 131072, 62.0), ("gpt-oss-120b", 131072, 9.0)],
)
def test_an_engine_that_unifies_pages_reserves_the_whole_length_in_windowed_layers_too(name, seq, gib):
    assert sum(layer.unified_bytes for layer in kv_layers(preset(name), batch=1, seq=seq)) == gib * GIB


def test_one_token_of_deepseek_v3_takes_70272_bytes_its_keys_and_values_being_one():
    config = preset("deepseek-v3")
    assert kv_cache_bytes_per_token(config) == 61 * (512 + 64) * 2 == 70_272
    assert {(layer.kind, layer.bytes_per_token) for layer in kv_layers(config, batch=1, seq=3)} == {("latent", 1152)}


def test_qwen3_next_caches_twelve_layers_and_keeps_a_state_in_thirty_six():
    layers = kv_layers(preset("qwen3-next-80b"), batch=3, seq=32768)
    kinds = [layer.kind for layer in layers]
    assert kinds == (["linear"] * 3 + ["full"]) * 12
    assert sum(layer.bytes for layer in layers if layer.kind == "full") == 3 * 0.75 * GIB
    # 32 heads of 128 x 128 in float32, and 4 tokens of the 8192 numbers that the convolution reads, in bfloat16
    assert {layer.state_bytes for layer in layers if layer.kind == "linear"} == {32 * 128 * 128 * 4 + 4 * 8192 * 2}
    assert {layer.bytes for layer in layers if layer.kind == "linear"} == {3 * (32 * 128 * 128 * 4 + 4 * 8192 * 2)}


def test_tokens_are_rounded_up_to_whole_pages_text_by_text():
    layers = kv_layers(preset("gpt-oss-20b"), batch=3, seq=1000, page_tokens=48)
    per_token = 8 * 2 * 64 * 2
    windowed, full = layers[0], layers[1]
    assert (windowed.kind, windowed.tokens, full.kind, full.tokens) == ("window", 128, "full", 1000)
    assert (windowed.bytes, windowed.reserved_bytes) == (3 * 128 * per_token, 3 * 144 * per_token)
    assert (full.bytes, full.reserved_bytes) == (3 * 1000 * per_token, 3 * 1008 * per_token)
    assert windowed.unified_bytes == full.unified_bytes == full.reserved_bytes


def test_without_pages_an_engine_reserves_what_is_kept():
    assert all(layer.bytes == layer.reserved_bytes for layer in kv_layers(preset("gemma-2-9b"), batch=2, seq=5000))


def test_a_layer_that_reads_anothers_keys_keeps_none():
    config = preset("llama-3-8b")
    reader = replace(config.blocks[0], attention=replace(config.blocks[0].attention, kv_layer=1))
    shared = replace(config, blocks=config.blocks[:2] + (reader,) * 30)
    layers = kv_layers(shared, batch=1, seq=100)
    assert [layer.kind for layer in layers] == ["full"] * 2 + ["shared"] * 30
    assert kv_cache_bytes(shared, batch=1, seq=100) == sum(layer.bytes for layer in layers)
    assert kv_cache_bytes(shared, batch=1, seq=100) == kv_cache_bytes(config, batch=1, seq=100) // 16


def test_a_decoder_with_an_encoder_keeps_the_sources_keys_too():
    config = preset("t5-small")
    layers = kv_layers(config, batch=2, seq=100)
    assert [(layer.layer, layer.kind) for layer in layers[:4]] == [(0, "full"), (0, "cross"), (1, "full"), (1, "cross")]
    assert {layer.bytes for layer in layers} == {2 * 100 * 2 * 512 * 2}
    assert kv_cache_bytes(config, batch=2, seq=100) == 12 * 2 * 100 * 2 * 512 * 2
    assert kv_cache_bytes_per_token(config) == 6 * 2 * 512 * 2  # the source does not grow


SMALL = st.integers(1, 40)


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=5, deadline=None)
@given(batch=SMALL, seq=SMALL, more=SMALL)
def test_a_cache_grows_with_texts_and_tokens_by_no_more_than_a_token_takes(name, batch, seq, more):
    config = preset(name)
    if config.kind == "encoder":
        assert kv_layers(config, batch=batch, seq=seq) == ()
        return
    before, after = (kv_cache_bytes(config, batch=batch, seq=length) for length in (seq, seq + more))
    cross = sum(layer.bytes_per_token for layer in kv_layers(config, batch=1, seq=1) if layer.kind == "cross")
    assert 0 <= after - before <= batch * more * (kv_cache_bytes_per_token(config) + cross)
    assert kv_cache_bytes(config, batch=2 * batch, seq=seq) == 2 * before
    for layer in kv_layers(config, batch=batch, seq=seq, page_tokens=more):
        assert layer.bytes <= layer.reserved_bytes <= layer.unified_bytes


def test_ten_thousand_layers_are_listed_at_once():
    config = read_config({"model_type": "gemma2", "num_hidden_layers": 10_000}, name="deep")
    assert len(kv_layers(config, batch=1, seq=2**31 - 1)) == 10_000


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
    with pytest.raises(ConfigError, match="must be"):
        kv_layers(preset("gpt2"), batch=batch, seq=seq)


def test_a_page_holds_at_least_a_token():
    with pytest.raises(ConfigError, match=r"page_tokens must be between 1 and .*; got 0"):
        kv_layers(preset("gpt2"), batch=1, seq=1, page_tokens=0)
