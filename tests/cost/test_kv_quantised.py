"""A cache of 8 bits: a byte a number, a float32 scale for each token and kv head, read back a layer at a time."""

import pytest

from headwise.config.presets import preset
from headwise.cost.kv import kv_cache_bytes, kv_layers
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

NAMES = ["gpt2", "llama-3-8b", "mistral-7b", "gemma-3-27b", "deepseek-v3", "t5-small"]
BATCH, SEQ = 2, 5003


def workload(phase, kv_cache="int8", **changes):
    return Workload(
        **{"batch": BATCH, "seq": SEQ, "phase": phase, "precision": "bf16", "kv_cache": kv_cache, **changes}
    )


def cache_at(ledger, moment):
    return [entry for entry in ledger.alive(moment) if "cached" in entry.name]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_is_a_byte_for_each_number_and_a_scale_for_each_token_and_head(name, phase):
    """Two closed forms that share nothing: the play of a step, and the sum over layers."""
    config = preset(name)
    ledger = predict_ledger(config, workload(phase))
    left = cache_at(ledger, len(ledger.moments) - 1)
    expected = kv_cache_bytes(config, batch=BATCH, seq=SEQ, kv_cache="int8")
    assert sum(entry.bytes for entry in left) == expected
    assert {entry.dtype for entry in left} == {"int8", "float32"}
    assert expected == sum(layer.bytes for layer in kv_layers(config, batch=BATCH, seq=SEQ, kv_cache="int8"))


def test_bytes_of_a_layer_are_counted_by_hand():
    """Llama 3: 8 kv heads of 128. Mistral: a window of 4096. DeepSeek V3: latent vectors of 512, rotary keys of 64."""
    per_token = {name: kv_layers(preset(name), batch=1, seq=9000, kv_cache="int8")[0] for name in NAMES}
    assert per_token["llama-3-8b"].bytes_per_token == 2 * 8 * (128 + 4)
    assert per_token["mistral-7b"].bytes == 4096 * 2 * 8 * (128 + 4)
    assert per_token["deepseek-v3"].bytes_per_token == 512 + 4 + 64 + 4
    assert per_token["gpt2"].bytes_per_token == 2 * 12 * (64 + 4)


def test_the_models_dtype_does_not_matter_to_it():
    config = preset("llama-3-8b")
    sizes = {kv_cache_bytes(config, batch=1, seq=7, dtype=dtype, kv_cache="int8") for dtype in ("float32", "bfloat16")}
    assert len(sizes) == 1


def test_a_decode_reads_back_one_layer_at_a_time_into_the_models_dtype():
    ledger = predict_ledger(preset("llama-3-8b"), workload("decode"))
    for moment, name in enumerate(ledger.moments):
        read = [entry for entry in ledger.alive(moment) if entry.name.endswith("read back")]
        assert {entry.owner for entry in read} <= {f"{name.removeprefix('forward: ')} attention"}
        assert {(entry.shape, entry.dtype) for entry in read} <= {((BATCH, 8, SEQ, 128), "bfloat16")}
    names = {entry.name for entry in ledger.entries if entry.name.endswith("read back")}
    assert names == {"keys, read back", "values, read back"}


@pytest.mark.parametrize("name", NAMES)
def test_what_it_frees_is_the_difference_of_the_caches_less_what_is_read_back(name):
    """The peak of a decode, of a deep model, is in its last layers, where almost all of the new cache is there."""
    config = preset(name)
    plain, quantised = (predict_step(config, workload("decode", kind)).peak_bytes for kind in ("model", "int8"))
    caches = [
        kv_cache_bytes(config, batch=BATCH, seq=SEQ, dtype="bfloat16", kv_cache=kind) for kind in ("model", "int8")
    ]
    a_layer = max(layer.bytes for layer in kv_layers(config, batch=BATCH, seq=SEQ, dtype="bfloat16"))
    assert abs((plain - quantised) - (caches[0] - caches[1])) <= 3 * a_layer


def test_a_prefill_attends_to_what_it_has_just_computed():
    config = preset("llama-3-8b")
    tape = play_step(config, config.blocks[:1], workload("prefill"))
    assert not [record for record in tape.records if record.name.endswith("read back")]
    ledger = predict_ledger(config, workload("prefill"))
    shapes = {entry.shape for entry in ledger.entries if entry.name == "cached keys"}
    assert shapes == {(BATCH, 8, SEQ, 128)}
    windowed = predict_ledger(preset("mistral-7b"), workload("prefill"))
    assert {entry.shape for entry in windowed.entries if entry.name == "cached keys"} == {(BATCH, 8, 4096, 128)}


def test_training_has_no_cache_to_hold_in_8_bits():
    config = preset("llama-3-8b")
    assert predict_step(config, workload("train", seq=64)) == predict_step(config, workload("train", "model", seq=64))


def test_another_kind_of_cache_is_refused():
    with pytest.raises(ConfigError, match='kv_cache must be "model" or "int8"; got \'int4\''):
        kv_cache_bytes(preset("gpt2"), batch=1, seq=2, kv_cache="int4")
    with pytest.raises(ConfigError, match='kv_cache must be "model" or "int8"; got 8'):
        workload("decode", 8)
