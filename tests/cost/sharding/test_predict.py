"""Laws of the predicted ledger of one device, and what published formulas say of it."""

import dataclasses
import itertools
import json
import subprocess
import sys
import time

import pytest

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.sharding.predict import plan_of, predict_sharded_ledger, predict_sharded_step, sharded_events
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError, UnsupportedError

DATA_PARALLEL = ("zero1", "zero2", "zero3")
BRANCHES = ("attention", "feed-forward")
TRAIN = {"batch": 2, "seq": 64, "loss": "cross_entropy", "precision": "amp-bf16"}


def llama(**changes):
    content = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 640,
        "hidden_size": 48,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "max_position_embeddings": 128,
    }
    return read_config(content | changes, name="llama")


def gpt2(num_layers, width, num_heads, length=2048):
    """As Megatron's models: a plain GELU, and dropout everywhere."""
    content = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": num_layers,
        "n_embd": width,
        "n_head": num_heads,
        "n_positions": length,
        "vocab_size": 51200,
        "activation_function": "gelu",
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "resid_pdrop": 0.1,
    }
    return read_config(content, name="gpt2")


def spread(kind, num_devices=4, **changes):
    return Sharding(kind=kind, num_devices=num_devices, **changes)


def alive(ledger, moment, kind, owner=""):
    entries = ledger.alive(ledger.moments.index(moment))
    return [entry for entry in entries if entry.kind == kind and owner in entry.owner]


def play(kind, config=None, num_devices=4, **changes):
    """Every tensor of one device, those too that no moment of the ledger shows."""
    plan = plan_of(config or llama(), Workload(**TRAIN | changes), spread(kind, num_devices))
    return plan.play(plan.config, plan.config.blocks, plan.workload).records


def named(records, name):
    return [record for record in records if record.name == name]


def shapes_of(records, ending):
    return [record.shape for record in records if record.name.endswith(ending)]


# What each device holds


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_between_steps_a_device_holds_a_share_of_16_bytes_a_weight(kind):
    config = llama()
    ledger = predict_sharded_ledger(config, Workload(**TRAIN), spread(kind))
    states = [ledger.kind_bytes(kind) for kind in ("parameter", "optimizer")]
    gradients = alive(ledger, "optimizer step", "gradient")
    assert [*states, sum(entry.bytes for entry in gradients)] == [
        share * count_parameters(config).total // 4 for share in (4, 8, 4)
    ]


def test_rows_that_do_not_divide_are_padded_to_whole_ones():
    config = llama(vocab_size=641, intermediate_size=89)
    ledger = predict_sharded_ledger(config, Workload(**TRAIN), spread("zero3"))
    shapes = {entry.name: entry.shape for entry in ledger.entries if entry.kind == "parameter"}
    assert shapes["token table"] == (161, 48)
    assert shapes["gate_proj weight"] == (23, 48)
    gathered = {entry.name: entry.shape for entry in ledger.entries if entry.name.startswith("gathered")}
    assert gathered["gathered gate_proj weight"] == (92, 48)


@pytest.mark.parametrize("kind", DATA_PARALLEL)
@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
def test_sharing_states_out_leaves_what_is_saved_for_backward_as_it_was(kind, checkpoint):
    workload = Workload(**TRAIN | {"checkpoint": checkpoint, "precision": "bf16"})
    saved = predict_sharded_step(llama(), workload, spread(kind)).saved_bytes
    assert saved == predict_step(llama(), workload).saved_bytes


def test_zero3_never_holds_the_weights_of_more_than_two_layers_beside_the_root():
    ledger = predict_sharded_ledger(llama(), Workload(**TRAIN), spread("zero3"))
    for index, moment in enumerate(ledger.moments):
        layers = {
            entry.owner.split()[1]
            for entry in ledger.alive(index)
            if entry.owner.startswith("layer") and ("gathered" in entry.name or "weights on their way" in entry.name)
        }
        assert len(layers) <= 2, moment
        if "layer" not in moment and "backward" not in moment and moment not in ("forward: head", "loss"):
            assert not layers, moment


def test_zero3_sends_for_the_next_layer_while_one_goes_back():
    ledger = predict_sharded_ledger(llama(), Workload(**TRAIN), spread("zero3"))
    (coming,) = (entry for entry in alive(ledger, "backward: layer 3", "temporary") if "on their way" in entry.name)
    assert coming.owner == "layer 2"
    assert coming.bytes == 2 * (48 * 48 * 2 + 48 * 24 * 2 + 3 * 48 * 96 + 2 * 48)  # bfloat16


def test_zero2_holds_every_layers_weights_from_forward_to_backward():
    ledger = predict_sharded_ledger(llama(), Workload(**TRAIN), spread("zero2"))
    layers = {entry.owner for entry in alive(ledger, "loss", "temporary", "layer") if "gathered" in entry.name}
    assert layers == {f"layer {index}" for index in range(5)}


def test_gradients_of_two_layers_at_most_are_whole_at_once_and_the_roots():
    ledger = predict_sharded_ledger(llama(), Workload(**TRAIN), spread("zero3"))
    entries = alive(ledger, "backward: layer 2", "gradient")
    assert {entry.owner.split()[1] for entry in entries if "whole" in entry.name and "layer" in entry.owner} == {"2"}
    assert [entry.owner for entry in entries if entry.name == "gradients on their way"] == ["layer 3"]
    assert any(entry.name == "whole gradient of output weight" for entry in entries)


def test_what_goes_into_a_reduction_is_dropped_before_the_next_layers_does():
    sent = named(play("zero3"), "gradients on their way")
    assert len(sent) == 6  # of the layers and the root
    assert all(one.freed < other.born for one, other in itertools.pairwise(sent))


def test_wide_shards_are_cast_before_they_are_sent():
    for precision, count in (("amp-bf16", 11), ("bf16", 0)):  # for forward, for backward, and the root's
        cast = named(play("zero3", precision=precision), "shards, cast")
        assert [record.dtype for record in cast] == ["bfloat16"] * count


def test_the_last_layers_buffer_is_there_for_a_loss_that_is_part_of_the_model():
    for loss, num_buffers in (("cross_entropy", 1), ("sum", 0)):
        ledger = predict_sharded_ledger(llama(), Workload(**TRAIN | {"loss": loss}), spread("zero3"))
        assert sum(entry.name == "weights on their way" for entry in alive(ledger, "loss", "temporary")) == num_buffers


def test_what_was_sent_for_of_a_frozen_layer_is_dropped_with_backward():
    ledger = predict_sharded_ledger(llama(), Workload(**TRAIN | {"frozen_layers": 3}), spread("zero3"))
    (coming,) = (entry for entry in alive(ledger, "backward: layer 3", "temporary") if "on their way" in entry.name)
    assert coming.owner == "layer 2"
    assert not any("on their way" in entry.name for entry in alive(ledger, "optimizer step", "temporary"))


@pytest.mark.parametrize("views", [True, False])
def test_buckets_of_zero1_are_as_large_as_all_gradients_and_stay(views):
    config, workload = llama(), Workload(**TRAIN)
    ledger = predict_sharded_ledger(config, workload, spread("zero1", gradients_are_views=views))
    gradient_bytes = 4 * count_parameters(config).total
    held = [sum(one.bytes for one in ledger.alive(moment) if one.kind == "gradient") for moment in range(2)]
    assert held == [gradient_bytes, gradient_bytes]
    at_step = sum(entry.bytes for entry in alive(ledger, "optimizer step", "gradient"))
    assert at_step == (1 if views else 2) * gradient_bytes


def test_zero1_gives_a_large_weight_to_one_device_alone():
    config = llama(vocab_size=64_000, tie_word_embeddings=True)  # one table, far more than all the rest
    for num_devices in (2, 64):
        ledger = predict_sharded_ledger(config, Workload(**TRAIN), spread("zero1", num_devices))
        states = [(entry.name, entry.bytes) for entry in ledger.entries if entry.kind == "optimizer"]
        size = 4 * 64_000 * 48
        assert states == [("first moment of token table", size), ("second moment of token table", size)]


def test_zero1_steps_its_own_weights_alone():
    config = llama()
    workload = Workload(**TRAIN | {"optimizer_step": "foreach"})
    ledger = predict_sharded_ledger(config, workload, spread("zero1"))
    roots = [one.bytes for one in alive(ledger, "optimizer step", "temporary") if one.name.startswith("root of")]
    assert 2 * sum(roots) == ledger.kind_bytes("optimizer")


@pytest.mark.parametrize("kind", ["tensor", "sequence"])
def test_the_parts_of_all_devices_make_up_the_model(kind):
    config, workload = llama(), Workload(**TRAIN)
    parts = predict_sharded_ledger(config, workload, spread(kind)).entries
    every = predict_ledger(config, workload).entries
    sizes = {(one.owner, one.name): one.bytes for one in parts if one.kind == "parameter"}
    for entry in every:
        if entry.kind == "parameter":
            is_whole = "norm" in entry.name or (entry.name == "token table" and kind == "tensor")
            assert sizes[entry.owner, entry.name] == entry.bytes // (1 if is_whole else 4), entry


def test_a_device_has_one_key_head_where_there_are_fewer_than_devices():
    ledger = predict_sharded_ledger(llama(num_key_value_heads=2), Workload(**TRAIN), spread("tensor", 8))
    shapes = {entry.name: entry.shape for entry in ledger.entries if entry.kind == "parameter"}
    assert shapes["q_proj weight"] == shapes["k_proj weight"] == (6, 48)


def test_a_head_tied_to_the_token_table_stays_whole_under_tensor_parallelism():
    ledger = predict_sharded_ledger(llama(tie_word_embeddings=True), Workload(**TRAIN), spread("tensor"))
    assert "scores of each device" not in {entry.name for entry in ledger.entries}
    (scores,) = (entry for entry in ledger.entries if entry.name == "output scores")
    assert scores.shape == (2, 64, 640)


def test_tensor_parallelism_sums_each_branch_into_a_tensor_of_its_own():
    records = play("tensor")
    for projection in ("out_proj", "down_proj"):
        partial = named(records, f"{projection} output")
        summed = named(records, f"{projection} output, of all devices")
        assert len(partial) == len(summed) == 5
        assert {record.shape for record in (*partial, *summed)} == {(2, 64, 48)}
        assert all(one.born < other.born < one.freed for one, other in zip(partial, summed, strict=True))


def test_tensor_parallelism_sums_the_gradient_of_each_column_projections_input():
    num_gradients = [
        [len(named(play(kind, precision="bf16"), f"gradient of {branch} input")) for branch in BRANCHES]
        for kind in ("zero1", "tensor")
    ]
    assert num_gradients == [[15, 10], [30, 20]]  # 5 layers of queries, keys, values; of gates, ups
    for branch in BRANCHES:  # what has travelled is not added to in place
        assert len(named(play("tensor", precision="bf16"), f"sum of gradients of {branch} input")) == 5


def test_scores_come_device_by_device_before_they_lie_side_by_side():
    records = play("tensor")
    widths = {"output scores": 160, "scores of each device": 640, "output scores, gathered": 640}
    for name, width in widths.items():
        assert [record.shape for record in named(records, name)] == [(2, 64, width)]


def test_sequence_parallelism_gathers_tokens_before_a_product_and_again_for_its_backward():
    records = play("sequence")
    gathered = [record for record in records if record.name.endswith("all tokens")]
    assert {record.shape for record in gathered} == {(2, 64, 48)}
    assert not any(record.is_kept for record in gathered)
    again = shapes_of(records, "workspace of query backward")
    assert again == [(2, 64, 48)] * 5
    assert set(shapes_of(records, "of all devices")) == {(2, 16, 48)}


def test_keys_and_values_of_a_ring_are_sent_received_and_merged():
    records = play("context")
    rows, pair = (2, 8, 16, 8), (2 * 2 * 4 * 16 * 8,)  # CUDA's flash kernel pads heads of 6 numbers to 8
    for how in ("contiguous", "sent", "received"):
        assert shapes_of(records, f"keys and values, {how}") == [pair] * 5
    for how in ("merged so far", "merged"):
        assert shapes_of(records, f"attention output, {how}") == [rows] * 5


def test_context_parallelism_saves_what_a_text_of_its_part_does():
    workload = Workload(**TRAIN)
    part = predict_sharded_step(llama(), workload, spread("context"))
    alone = predict_step(llama(), dataclasses.replace(workload, seq=16))
    assert part.saved_bytes == alone.saved_bytes
    assert part.parameter_bytes == alone.parameter_bytes


# Published formulas and figures


def korthikanti(width, num_heads, num_devices, length=2048, batch=1):
    """Bytes that a layer saves: (with tensor parallelism, and with sequence parallelism), norms' statistics apart.

    Korthikanti et al. 2022, table 2.
    """
    scores = 5 * num_heads * length / width
    unit = length * batch * width
    return (
        unit * (10 + 24 / num_devices + scores / num_devices),
        unit * (34 + scores) / num_devices,
    )


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_a_layer_saves_what_korthikanti_et_al_derive(num_devices):
    workload = Workload(batch=3, seq=96, precision="fp16", attention="eager", loss="cross_entropy")
    formulas = korthikanti(64, 16, num_devices, length=96, batch=3)
    statistics = 16 * 3 * 96  # mean and inverse deviation of each row in two norms, float32
    for kind, formula, num_rows in (("tensor", formulas[0], 1), ("sequence", formulas[1], num_devices)):
        entries = predict_sharded_ledger(gpt2(4, 64, 16), workload, spread(kind, num_devices)).entries
        saved = sum(entry.bytes for entry in entries if entry.kind == "saved" and entry.owner.startswith("layer 1"))
        assert saved == formula + statistics / num_rows


MODELS = {
    "22B": (48, 6144, 64, 4),
    "175B": (96, 12288, 96, 1),
    "530B": (105, 20480, 128, 1),
    "1T": (128, 25600, 160, 1),
}
TOTALS = {  # GB of all layers over 8 devices: tensor, sequence, sequence and selective, tensor and full
    "22B": (63.6, 42.5, 10.3, 4.8),
    "175B": (55.6, 34.4, 10.3, 4.8),
    "530B": (92.5, 53.9, 18.7, 8.8),
    "1T": (140.9, 82.2, 28.5, 13.4),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_layers_save_what_korthikanti_et_al_give_for_models_of_22b_to_1t(name):
    num_layers, width, num_heads, batch = MODELS[name]
    found = []
    for kind, checkpoint in (("tensor", "none"), ("sequence", "none"), ("sequence", "selective"), ("tensor", "full")):
        workload = Workload(batch=batch, seq=2048, precision="fp16", attention="eager", checkpoint=checkpoint)
        entries = predict_sharded_ledger(gpt2(3, width, num_heads), workload, spread(kind, 8)).entries
        saved = sum(entry.bytes for entry in entries if entry.kind == "saved" and "layer 1" in entry.owner)
        found.append(num_layers * saved / 1e9)
    assert found == pytest.approx(TOTALS[name], rel=0.01)


def test_a_ring_of_devices_costs_no_more_than_published_beside_their_share_of_the_tokens():
    """torchtitan, llama3_h100_202412, table 2: 83.9 GiB at 32,768 tokens on each of 8 devices, 84.5 at 8 times that."""
    config = preset("llama-3-8b")
    row = {"batch": 1, "precision": "bf16", "loss": "cross_entropy", "checkpoint": "full"}
    alone = predict_step(config, Workload(seq=32_768, **row))
    ring = predict_sharded_step(config, Workload(seq=8 * 32_768, **row), spread("context", 8))
    assert 0 <= ring.peak_bytes - alone.peak_bytes <= 0.6 * 2**30


# How the parts agree


@pytest.mark.parametrize("kind", SHARDINGS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checkpoint": "full"},
        {"accumulation": 3},
        {"loss": "chunked_cross_entropy"},
        {"phase": "prefill"},
    ],
    ids=str,
)
def test_totals_are_those_of_the_ledger(kind, changes):
    asked = llama(), Workload(**TRAIN | changes), spread(kind)
    ledger, step = predict_sharded_ledger(*asked), predict_sharded_step(*asked)
    assert step.peak_bytes == ledger.bytes_at(ledger.peak)
    assert (step.parameter_bytes, step.saved_bytes) == (ledger.kind_bytes("parameter"), ledger.kind_bytes("saved"))


def test_the_peak_of_zero1_may_be_its_optimizers_step():
    few = TRAIN | {"batch": 1, "seq": 2, "precision": "fp32", "device": "cpu", "optimizer_step": "foreach"}
    asked = llama(vocab_size=8), Workload(**few), spread("zero1", 2)
    ledger, step = predict_sharded_ledger(*asked), predict_sharded_step(*asked)
    assert step.peak_moment == ledger.moments[ledger.peak] == "optimizer step"
    assert step.peak_bytes == ledger.bytes_at(ledger.peak)


@pytest.mark.parametrize("kind", SHARDINGS)
def test_a_deep_model_repeats_its_layers_as_if_all_were_played(kind):
    """The events are of every layer, the ledger of the first, the last and one between."""
    asked = llama(num_hidden_layers=7), Workload(**TRAIN), spread(kind)
    events = list(sharded_events(*asked))
    standing = sum(size for (step, _), size in events if step == -1 and size)
    requested = replay(events).requested_peak_bytes
    if kind == "zero1":  # the states stand, and what the optimizer's step needs is in the ledger alone
        assert standing == predict_sharded_ledger(*asked).kind_bytes("optimizer")
    assert requested == predict_sharded_step(*asked).peak_bytes


@pytest.mark.parametrize("kind", SHARDINGS)
def test_more_devices_never_need_more_on_each(kind):
    config = llama(num_attention_heads=16, num_key_value_heads=16, head_dim=8, hidden_size=128, intermediate_size=128)
    peaks = [predict_sharded_step(config, Workload(**TRAIN), spread(kind, 2**n)).peak_bytes for n in range(1, 5)]
    assert peaks == sorted(peaks, reverse=True)
    if kind != "context":
        assert len(set(peaks)) == len(peaks)


def test_each_stage_of_zero_needs_less_than_the_one_before():
    config = preset("llama-3-8b")
    workload = Workload(batch=1, seq=512, precision="bf16", loss="cross_entropy")
    peaks = [predict_sharded_step(config, workload, spread(kind, 8)).peak_bytes for kind in DATA_PARALLEL]
    peaks.insert(0, predict_step(config, workload).peak_bytes)
    assert peaks == sorted(peaks, reverse=True)


def test_adapters_are_sharded_with_the_weights_and_alone_have_gradients():
    config = llama()
    workload = Workload(**TRAIN | {"lora": Lora(rank=4)})
    ledger = predict_sharded_ledger(config, workload, spread("zero3"))
    trained = {
        entry.name for entry in ledger.entries if entry.kind == "gradient" and entry.name.startswith("gradient of")
    }
    assert trained == {f"gradient of {name} adapter {part}" for name in ("q_proj", "v_proj") for part in "AB"}
    assert ledger.kind_bytes("optimizer") == 8 * 5 * (2 * (1 * 48) + (12 + 6) * 4)


# Refusals


@pytest.mark.parametrize(
    ("changes", "asked", "kind", "text"),
    [
        (
            {"num_attention_heads": 6, "num_key_value_heads": 6},
            {},
            "tensor",
            "number of heads that the number of devices divides",
        ),
        (
            {"intermediate_size": 98},
            {},
            "sequence",
            "feed-forward width that the number of devices divides; got 98 and 4",
        ),
        ({"num_attention_heads": 12, "num_key_value_heads": 6}, {}, "tensor", "got 6 and 4"),
        ({}, {"lora": Lora(rank=2)}, "tensor", "take sharding 'zero3'"),
        ({}, {"seq": 63}, "sequence", "length that the number of devices divides; got 63 and 4"),
        ({}, {"seq": 63}, "context", "length that the number of devices divides; got 63 and 4"),
        ({}, {"attention": "eager"}, "context", "needs attention 'sdpa'"),
        ({}, {"precision": "fp32"}, "context", "needs a fused kernel; got 'math'"),
        ({}, {"phase": "decode"}, "context", "a decode has one"),
        ({}, {"optimizer": "muon"}, "zero3", "Muon turns whole matrices"),
    ],
)
def test_what_cannot_be_spread_is_refused_in_one_line(changes, asked, kind, text):
    with pytest.raises(UnsupportedError, match=text) as refused:
        predict_sharded_step(llama(**changes), Workload(**TRAIN | asked), spread(kind))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("mixtral-8x7b", "tensor", "dense feed-forwards"),
        ("deepseek-v3", "sequence", "plain attention"),
        ("t5-small", "tensor", "one stack"),
        ("t5-small", "context", "one stack"),
        ("vit-b-16", "context", "one stack; .* has patches"),
        ("bert-base", "sequence", "reads the first one alone"),
        ("mistral-7b", "context", "causal or full attention"),
    ],
)
def test_models_that_have_no_such_parts_are_refused(name, kind, text):
    workload = Workload(batch=1, seq=8192 if name == "mistral-7b" else 512, precision="bf16")
    with pytest.raises(UnsupportedError, match=text):
        predict_sharded_step(preset(name), workload, spread(kind))


@pytest.mark.parametrize("value", [0, 1, -3, 2**40, True, "4", 2.0, None])
def test_a_number_of_devices_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match="num_devices must be"):
        Sharding(kind="zero3", num_devices=value)


def test_a_model_of_many_layers_spread_over_most_devices_answers_in_bounded_time():
    config = llama(num_hidden_layers=2_000)
    began = time.monotonic()
    for kind in ("zero2", "zero3", "zero1"):
        predict_sharded_step(config, Workload(**TRAIN), spread(kind, 2**20))
    assert time.monotonic() - began < 20  # seconds; less than one on an idle machine


def test_predictions_do_without_torch():
    code = (
        "import json, sys\n"
        "from headwise.config.presets import preset\n"
        "from headwise.cost.sharding.predict import predict_sharded_step\n"
        "from headwise.cost.sharding.results import SHARDINGS, Sharding\n"
        "from headwise.cost.sharding.travel import travels\n"
        "from headwise.cost.workload import Workload\n"
        "asked = preset('gpt2'), Workload(batch=1, seq=64)\n"
        "for kind in SHARDINGS:\n"
        "    predict_sharded_step(*asked, Sharding(kind=kind, num_devices=2))\n"
        "    travels(*asked, Sharding(kind=kind, num_devices=2))\n"
        "print(json.dumps('torch' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
