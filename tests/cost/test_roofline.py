import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.attention import ALiBi, AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.flops import decode_flops
from headwise.cost.kv import kv_cache_bytes
from headwise.cost.memory import predict_ledger
from headwise.cost.parameters import count_parameters
from headwise.cost.planning.results import TimeEstimate
from headwise.cost.results import Device, Ledger, LedgerEntry, Rates
from headwise.cost.roofline import estimate_time
from headwise.cost.sharding.results import Sharding
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Workload
from headwise.masks.patterns import Causal, Full, SlidingWindow

BATCH, SEQ = 2, 7
TINY = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "num_hidden_layers": 5,
    "intermediate_size": 13,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
LAYER_PRODUCTS = 12 * 18 + 2 * 12 * 6 + 18 * 12 + 3 * 12 * 13  # weights of a layer of TINY that multiply
LAYER_WEIGHTS = LAYER_PRODUCTS + 2 * 12
HEAD_WEIGHTS = 12 + 11 * 12  # the final norm and the output projection
MOMENTS = ("forward: layer 0", "loss", "backward: layer 0", "optimizer step")


def tiny(**changes: object) -> ModelConfig:
    return read_config({**TINY, **changes}, name="tiny", head=True)


def device(*, fp32: float = 1e6, bf16: float | None = 1e6, bandwidth: float = 1e6) -> Device:
    rates = Rates(fp32=fp32, tf32=7e9, fp16=3e6, bf16=bf16, bytes_per_second=bandwidth, source="a sheet", date="2020")
    return replace(DEVICES["a100-40gb"], rates=rates)


def entry(kind: str, num_bytes: int, born: int, freed: int | None) -> LedgerEntry:
    return LedgerEntry(
        name="x", kind=kind, bytes=num_bytes, shape=(num_bytes,), dtype="uint8", owner="o", born=born, freed=freed
    )


def ledger(*entries: LedgerEntry, weights: int = 0, moments: tuple[str, ...] = MOMENTS) -> Ledger:
    return Ledger(moments=moments, entries=(entry("parameter", weights, 0, None), *entries))


def estimate(config: ModelConfig, workload: Workload, on: Device, of: Ledger) -> TimeEstimate:
    result = estimate_time(config, workload, on, of)
    assert result is not None
    return result


def bytes_of(of: Ledger, config: ModelConfig | None = None, **workload: object) -> int:
    asked = Workload(batch=BATCH, seq=SEQ, **workload)
    return estimate(config or tiny(), asked, device(), of).moved_bytes


def without_tables(config: ModelConfig, number_bytes: int = 4) -> int:
    """The bytes of a ledger's weights of which nothing but the token table is left out."""
    return config.vocab_size * config.embed_dim * number_bytes


def test_the_flops_of_a_prefill_are_those_that_a_hand_counts():
    pairs = SEQ * (SEQ + 1) // 2  # causal, and the flash kernel skips the others
    layer = 2 * BATCH * SEQ * LAYER_PRODUCTS + 2 * BATCH * 3 * pairs * (6 + 6)
    workload = Workload(batch=BATCH, seq=SEQ, phase="prefill", precision="bf16")
    result = estimate(tiny(), workload, device(bf16=1e3), predict_ledger(tiny(), workload))
    assert result.flops == 5 * layer + 2 * BATCH * SEQ * 11 * 12
    assert result.flops_seconds == pytest.approx(result.flops / 1e3)


@pytest.mark.parametrize(("bf16", "bandwidth", "binds"), [(1e3, 1e12, "FLOPs"), (1e12, 1e3, "bandwidth")])
def test_a_prefill_takes_the_longer_of_computing_and_moving(bf16, bandwidth, binds):
    workload = Workload(batch=BATCH, seq=SEQ, phase="prefill", precision="bf16")
    result = estimate(tiny(), workload, device(bf16=bf16, bandwidth=bandwidth), predict_ledger(tiny(), workload))
    assert result.binds == binds
    assert result.seconds == max(result.flops / bf16, result.moved_bytes / bandwidth)
    assert (result.flops_per_second, result.bytes_per_second) == (bf16, bandwidth)


def test_a_step_is_the_sum_of_what_is_longer_in_each_of_its_phases():
    workload = Workload(batch=BATCH, seq=SEQ, precision="bf16")
    config = tiny()
    flops = step_flops(config, workload)
    of = ledger(
        entry("temporary", 10_000_000, 2, 3),  # backward moves more than it computes
        entry("optimizer", 1000, 0, None),
        weights=without_tables(config, 2),
    )
    result = estimate(config, workload, device(), of)
    assert flops.backward.attended < 20_000_000
    forward, backward, step = flops.forward.attended / 1e6, 20.0, 2000 / 1e6
    assert result.seconds == pytest.approx(forward + backward + step)
    assert result.flops == flops.forward.attended + flops.backward.attended
    assert result.moved_bytes == 20_000_000 + 2000


@pytest.mark.parametrize(
    ("of", "moved"),
    [
        (entry("input", 101, 0, None), 101),
        (entry("temporary", 101, 0, 1), 2 * 101),
        (entry("saved", 101, 1, 3), 2 * 101),
        (entry("temporary", 101, 3, 4), 2 * 101),
        (entry("gradient", 101, 2, None), 101 + 3 * 101),
        (entry("optimizer", 101, 0, None), 2 * 101),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_each_kind_of_tensor_moves_as_often_as_it_must(of, moved):
    assert bytes_of(ledger(of, weights=without_tables(tiny()))) == moved


def test_a_tensor_is_written_where_it_is_made_and_read_where_it_is_last_alive():
    config, workload = tiny(), Workload(batch=BATCH, seq=SEQ, precision="bf16")
    flops = step_flops(config, workload)
    of = ledger(entry("saved", 50_000_000, 0, 3), weights=without_tables(config, 2))
    result = estimate(config, workload, device(), of)
    assert max(flops.forward.attended, flops.backward.attended) < 50_000_000
    assert result.seconds == pytest.approx(50 + 50)
    in_forward = ledger(entry("temporary", 50_000_000, 0, 2), weights=without_tables(config, 2))
    longer = estimate(config, workload, device(), in_forward).seconds
    assert longer == pytest.approx(100 + flops.backward.attended / 1e6)


def test_weights_are_read_forward_and_backward():
    config = tiny()
    weights = count_parameters(config).total * 4
    assert weights == 4 * (11 * 12 + 5 * LAYER_WEIGHTS + HEAD_WEIGHTS)
    read = 4 * (5 * LAYER_WEIGHTS + HEAD_WEIGHTS)
    assert bytes_of(ledger(weights=weights)) == 2 * read
    assert bytes_of(ledger(weights=weights), phase="prefill") == read


def test_under_autocast_copies_are_read_backward_in_place_of_weights():
    config = tiny()
    of = ledger(entry("saved", 999, 0, 3), weights=count_parameters(config).total * 4)
    assert bytes_of(of, precision="amp-bf16") == 4 * (5 * LAYER_WEIGHTS + HEAD_WEIGHTS) + 2 * 999


def test_frozen_layers_are_not_read_backward():
    config = tiny()
    of = ledger(weights=count_parameters(config).total * 4)
    assert bytes_of(of) - bytes_of(of, frozen_layers=2) == 4 * 2 * LAYER_WEIGHTS


def test_a_tied_table_is_read_as_the_head_that_it_is():
    tied = tiny(tie_word_embeddings=True)
    assert count_parameters(tied).total == 11 * 12 + 5 * LAYER_WEIGHTS + 12
    of = ledger(weights=count_parameters(tied).total * 4)
    assert bytes_of(of, tied, phase="prefill") == 4 * (5 * LAYER_WEIGHTS + HEAD_WEIGHTS)


@pytest.mark.parametrize(("batch", "experts"), [(1, 2), (2, 4), (3, 5), (100, 5)])
def test_a_mixture_reads_as_many_experts_as_its_tokens_can_reach(batch, experts):
    config = tiny(model_type="mixtral", num_local_experts=5, num_experts_per_tok=2)
    weights = count_parameters(config).total * 4
    workload = Workload(batch=batch, seq=1, phase="prefill")
    moved = estimate(config, workload, device(), ledger(weights=weights)).moved_bytes
    assert weights - without_tables(config) - moved == 4 * 5 * (5 - experts) * 3 * 12 * 13


def test_passes_of_an_accumulation_add_to_the_gradients_of_those_before():
    of = ledger(
        entry("saved", 13, 0, 3),
        entry("gradient", 101, 0, None),
        entry("temporary", 7, 3, 4),
        weights=without_tables(tiny()),
    )
    assert bytes_of(of) == 2 * 13 + 101 + 3 * 101 + 2 * 7
    assert bytes_of(of, accumulation=5) == 5 * 2 * 13 + 101 + 4 * 2 * 101 + 3 * 101 + 2 * 7


@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
def test_backward_computes_what_checkpointing_has_dropped(checkpoint):
    workload = Workload(batch=BATCH, seq=SEQ, checkpoint=checkpoint, precision="bf16")
    result = estimate(tiny(), workload, device(), predict_ledger(tiny(), workload))
    assert result.flops == step_flops(tiny(), workload).hardware.attended


def test_eager_attention_computes_the_pairs_that_are_hidden_too():
    workload = Workload(batch=BATCH, seq=SEQ, attention="eager", precision="bf16")
    result = estimate(tiny(), workload, device(), predict_ledger(tiny(), workload))
    assert result.flops == step_flops(tiny(), workload).hardware.dense
    assert "FLOPs of all pairs" in result.source


def test_a_mask_tensor_makes_the_kernel_compute_all_pairs():
    config = tiny(model_type="mistral", sliding_window=3)
    workload = Workload(batch=BATCH, seq=SEQ, phase="prefill", precision="bf16")
    flops = step_flops(config, workload).hardware
    assert flops.attended < flops.dense
    assert estimate(config, workload, device(), predict_ledger(config, workload)).flops == flops.dense


@pytest.mark.parametrize(
    ("mask", "settings", "skips"),
    [
        (Causal(), {}, True),
        (Causal(), {"num_kv_heads": 1}, False),  # the queries of a group are packed, which needs a mask tensor
        (SlidingWindow(3), {}, False),
        (Full(), {}, False),  # there is nothing to skip
        (Causal(), {"position": ALiBi()}, False),  # which is a mask tensor
        (Causal(), {"sink": True}, True),
        (Causal(), {"softcap": 5.0}, False),  # by plain tensor operations
    ],
    ids=str,
)
def test_our_own_layers_skip_pairs_where_the_causal_flag_reaches_the_kernel(mask, settings, skips):
    attention = AttentionConfig(embed_dim=24, num_heads=3, mask=mask, **settings)
    block = BlockConfig(attention=attention, feed_forward=FeedForwardConfig(embed_dim=24, hidden_dim=13))
    config = ModelConfig(
        name="own",
        model_type="headwise",
        kind="decoder",
        embed_dim=24,
        vocab_size=11,
        max_positions=53,
        blocks=(block, block),
    )
    workload = Workload(batch=BATCH, seq=SEQ, phase="prefill", precision="fp32")
    flops = step_flops(config, workload).hardware
    result = estimate(config, workload, device(), ledger(weights=5000, moments=("forward: layer 0",)))
    assert result.flops == (flops.attended if skips else flops.dense)


def test_of_layers_of_both_kinds_each_computes_its_own_pairs():
    config = preset("gemma-3-27b")
    workload = Workload(batch=1, seq=4096, phase="prefill", precision="bf16")
    hidden_by_kind = {}
    for block, num_layers in config.block_groups:
        window = getattr(block.attention.mask, "window_size", None)
        seq, heads = workload.seq, block.attention.num_heads
        seen = seq * (seq + 1) // 2 if window is None else window * (window + 1) // 2 + (seq - window) * window
        hidden = num_layers * 4 * heads * block.attention.head_dim * (seq * seq - seen)
        hidden_by_kind[window is None] = hidden_by_kind.get(window is None, 0) + hidden
    flops = step_flops(config, workload).hardware
    assert flops.dense - flops.attended == sum(hidden_by_kind.values())
    result = estimate(config, workload, device(), predict_ledger(config, workload))
    assert result.flops == pytest.approx(flops.dense - hidden_by_kind[True], rel=1e-12)
    assert "in layers whose kernel skips" in result.source


@pytest.mark.parametrize(
    ("precision", "rate", "words"),
    [
        ("fp32", 1e3, "products in float32;"),
        ("fp16", 3e6, "products in float16;"),
        ("amp-fp16", 3e6, "products in float16;"),
        ("bf16", 1e3, "products in bfloat16 at float32's rate, as the device has no units"),
    ],
)
def test_products_run_at_the_rate_of_their_dtype(precision, rate, words):
    workload = Workload(batch=BATCH, seq=SEQ, precision=precision)
    on = device(fp32=1e3, bf16=None)
    result = estimate(tiny(), workload, on, ledger(weights=5000))
    assert result.flops_per_second == rate
    assert words in result.source
    assert "rates: a sheet (2020)" in result.source


@pytest.mark.parametrize(
    ("on", "precision"),
    [
        (Device(name="here", description="a machine", memory_bytes=2**30, kind="cpu", source="-", date="-"), "fp32"),
        (DEVICES["apple-m-16gb"], "fp16"),
        (DEVICES["tpu-v5e"], "fp32"),
        (DEVICES["tpu-v5e"], "fp16"),
    ],
)
def test_without_a_rate_there_is_no_estimate(on, precision):
    workload = Workload(batch=BATCH, seq=SEQ, precision=precision)
    assert estimate_time(tiny(), workload, on, ledger(weights=5000)) is None


@pytest.mark.parametrize(("name", "queries_per_kv"), [("llama-2-7b", 1), ("llama-3-8b", 4), ("llama-3-70b", 8)])
def test_attention_of_a_decode_computes_as_many_flops_a_byte_as_queries_share_a_key(name, queries_per_kv):
    config = preset(name)
    flops = [decode_flops(config, batch=3, seq=seq).dense for seq in (1000, 2000)]
    cached = [kv_cache_bytes(config, batch=3, seq=seq, dtype="bfloat16") for seq in (1000, 2000)]
    assert (flops[1] - flops[0]) / (cached[1] - cached[0]) == queries_per_kv


def test_an_h100_computes_295_flops_while_it_moves_a_byte():
    rates = DEVICES["h100-80gb"].rates
    assert rates.bf16 / rates.bytes_per_second == pytest.approx(295, abs=1)


@pytest.mark.parametrize("batch", [1, 64])
def test_a_decode_reads_weights_and_cache_once(batch):
    config, on = preset("llama-3-8b"), DEVICES["h100-80gb"]
    workload = Workload(batch=batch, seq=8192, phase="decode", precision="bf16")
    weights = 2 * (8_030_261_248 - 128_256 * 4096)  # without the token table
    result = estimate(config, workload, on, ledger(weights=2 * 8_030_261_248, moments=("forward: layer 0",)))
    assert result.moved_bytes == weights + batch * 2**30
    assert result.flops == decode_flops(config, batch=batch, seq=8192).attended
    assert result.seconds == max(result.flops / 989.5e12, result.moved_bytes / 3.35e12)
    assert result.binds == "bandwidth"


def test_a_decode_goes_over_no_more_keys_than_a_layers_window():
    config = preset("gemma-3-27b")
    flops = decode_flops(config, batch=1, seq=8192)
    workload = Workload(batch=1, seq=8192, phase="decode", precision="bf16")
    assert flops.attended < flops.dense
    assert estimate(config, workload, device(), ledger(weights=10**11)).flops == flops.attended


def test_a_cache_of_8_bits_is_read_in_half_the_bytes():
    config = preset("llama-3-8b")
    workload = Workload(batch=7, seq=8192, phase="decode", precision="bf16")
    of = ledger(weights=2 * 8_030_261_248, moments=("forward: layer 0",))
    whole = estimate(config, workload, device(), of).moved_bytes
    half = estimate(config, replace(workload, kv_cache="int8"), device(), of).moved_bytes
    assert whole - half == 7 * 2**29


@pytest.mark.parametrize("name", ["bert-base", "mixtral-8x7b"])
def test_more_texts_never_take_less_time(name):
    config, on = preset(name), DEVICES["a100-80gb"]
    results = []
    for batch in (1, 2, 5, 13):
        workload = Workload(batch=batch, seq=64, precision="bf16")
        results.append(estimate(config, workload, on, predict_ledger(config, workload)))
    assert [one.seconds for one in results] == sorted(one.seconds for one in results)
    assert [one.flops for one in results] == [results[0].flops * batch for batch in (1, 2, 5, 13)]


@settings(max_examples=20, deadline=None)
@given(rate=st.floats(1e9, 1e16), bandwidth=st.floats(1e9, 1e14), factor=st.floats(1, 1e3))
def test_a_faster_device_is_never_slower_and_time_is_between_the_parts_and_their_sum(rate, bandwidth, factor):
    config, workload = tiny(), Workload(batch=BATCH, seq=SEQ)
    of = ledger(entry("saved", 30_000, 0, 3), entry("optimizer", 9000, 0, None), weights=40_000)
    result = estimate(config, workload, device(fp32=rate, bandwidth=bandwidth), of)
    for faster in (device(fp32=rate * factor, bandwidth=bandwidth), device(fp32=rate, bandwidth=bandwidth * factor)):
        assert estimate(config, workload, faster, of).seconds <= result.seconds
    least = max(result.flops_seconds, result.bytes_seconds)
    assert least * (1 - 1e-12) <= result.seconds <= (result.flops_seconds + result.bytes_seconds) * (1 + 1e-12)


def spread(kind: str, of: Ledger, config: ModelConfig, workload: Workload, num_devices: int = 3) -> TimeEstimate:
    result = estimate_time(config, workload, device(), of, sharding=Sharding(kind=kind, num_devices=num_devices))
    assert result is not None
    return result


def test_of_shared_heads_one_device_computes_its_heads_hidden_units_and_part_of_the_words():
    config = tiny(num_key_value_heads=3, intermediate_size=15, vocab_size=12)
    workload = Workload(batch=BATCH, seq=SEQ, phase="prefill", precision="bf16")
    whole = estimate(config, workload, device(), ledger())
    assert spread("tensor", ledger(), config, workload).flops == whole.flops // 3
    training = replace(workload, phase="train", loss="chunked_cross_entropy", accumulation=5)
    whole = estimate(config, training, device(), ledger())
    for kind in ("tensor", "sequence"):
        step = replace(training, seq=9) if kind == "sequence" else training
        whole = estimate(config, step, device(), ledger())
        assert spread(kind, ledger(), config, step).flops == whole.flops // 3


def test_a_tied_head_is_whole_on_each_device_and_one_kv_head_too():
    config = tiny(intermediate_size=15, tie_word_embeddings=True)
    workload = Workload(batch=BATCH, seq=SEQ, phase="prefill", precision="bf16")
    pairs = SEQ * (SEQ + 1) // 2
    products = 12 * 6 + 2 * 12 * 6 + 6 * 12 + 3 * 12 * 5  # one query head, the kv head, a third of the hidden units
    layer = 2 * BATCH * SEQ * products + 2 * BATCH * pairs * (6 + 6)
    assert spread("tensor", ledger(), config, workload).flops == 5 * layer + 2 * BATCH * SEQ * 11 * 12


def test_of_parts_of_a_text_each_device_computes_its_share_and_of_texts_its_own():
    config, workload = tiny(num_key_value_heads=3), Workload(batch=BATCH, seq=9, precision="bf16")
    whole = estimate(config, workload, device(), ledger()).flops
    assert spread("context", ledger(), config, workload).flops == pytest.approx(whole / 3, abs=2)
    for kind in ("zero1", "zero2", "zero3"):
        assert spread(kind, ledger(), config, workload).flops == whole


def test_a_share_of_the_update_and_shards_move_once_to_be_gathered():
    config, workload = tiny(), Workload(batch=BATCH, seq=SEQ)
    of = ledger(entry("gradient", 900, 2, None), entry("optimizer", 60, 3, None), weights=90_000)
    alone = estimate(config, workload, device(), of).moved_bytes
    assert alone - spread("zero1", of, config, workload).moved_bytes == 3 * 900 - 3 * 300
    read_twice = 90_000 - without_tables(config)
    for kind in ("zero2", "zero3"):
        assert alone - spread(kind, of, config, workload).moved_bytes == 2 * read_twice - 90_000
    config = tiny(num_key_value_heads=3, intermediate_size=15, vocab_size=12)
    prefill = replace(workload, phase="prefill")
    more = spread("tensor", of, config, prefill).moved_bytes - estimate(config, prefill, device(), of).moved_bytes
    assert more == (12 - 4) * 12 * 4  # of the token table it has a third, which is looked up


def test_an_estimate_of_80_layers_is_quick_and_needs_no_torch():
    code = (
        "import sys; from headwise.config.presets import preset; from headwise.cost.devices import DEVICES; "
        "from headwise.cost.memory import predict_ledger; from headwise.cost.roofline import estimate_time; "
        "from headwise.cost.workload import Workload; w = Workload(batch=1, seq=512, precision='bf16'); "
        "c = preset('llama-3-70b'); assert estimate_time(c, w, DEVICES['a100-80gb'], predict_ledger(c, w)); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    config, workload = preset("llama-3-70b"), Workload(batch=1, seq=512, precision="bf16")
    of = predict_ledger(config, workload)
    started = time.process_time()
    estimate(config, workload, DEVICES["a100-80gb"], of)
    assert time.process_time() - started < 0.1
