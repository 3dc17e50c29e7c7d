"""What devices send to one another, against the formulas of the papers and by hand."""

import dataclasses

import pytest

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.parameters import count_parameters
from headwise.cost.sharding.results import SHARDINGS, Sharding
from headwise.cost.sharding.travel import travels
from headwise.cost.workload import Lora, Workload
from headwise.errors import UnsupportedError

NUM_LAYERS, WIDTH, VOCAB = 5, 48, 640
BATCH, SEQ = 2, 64
STATES = 2 * BATCH * SEQ * WIDTH  # bytes of the residual stream, bfloat16


def llama(**changes):
    content = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "num_hidden_layers": NUM_LAYERS,
        "max_position_embeddings": 128,
    }
    return read_config(content | changes, name="llama")


def workload(**changes):
    return Workload(**{"batch": BATCH, "seq": SEQ, "precision": "bf16", "loss": "cross_entropy"} | changes)


def sent(kind, num_devices=4, config=None, **changes):
    """Bytes by what is sent, times N / (N - 1): as if all of each tensor were sent."""
    found = travels(config or llama(), workload(**changes), Sharding(kind=kind, num_devices=num_devices))
    return {one.what: one.sent_bytes * num_devices / (num_devices - 1) for one in found}


# ZeRO: in units of all weights' bytes (Rajbhandari et al. 2020, section 7)


@pytest.mark.parametrize(("kind", "times"), [("zero1", 3), ("zero2", 2)])
def test_sharing_states_sends_whole_multiples_of_all_weights(kind, times):
    """An all-reduce counts twice; ZeRO's own first stage, which reduces each gradient to one device, would save one."""
    weight_bytes = 2 * count_parameters(llama()).total
    assert sum(sent(kind).values()) == times * weight_bytes


def test_sharing_weights_sends_them_three_times_but_for_what_stays_gathered():
    config = preset("llama-3-8b")
    weight_bytes = 2 * count_parameters(config).total
    root_bytes = 2 * (2 * 128_256 * 4096 + 4096)  # both tables and the last norm
    assert sum(sent("zero3", 8, config).values()) == 3 * weight_bytes - root_bytes
    assert sum(sent("zero3", 8, config).values()) == pytest.approx(3 * weight_bytes, rel=0.05)


def test_shards_of_uneven_rows_travel_with_their_padding():
    found = sent("zero2", config=llama(vocab_size=VOCAB + 1))
    padded = count_parameters(llama(vocab_size=VOCAB + 4)).total
    assert found["weights, for forward"] == found["gradients"] == 2 * padded


def test_mixed_precision_gathers_narrow_weights_and_reduces_wide_gradients():
    found = sent("zero2", precision="amp-bf16")
    assert found["gradients"] == 2 * found["weights, for forward"] == 4 * count_parameters(llama()).total


def test_accumulation_gathers_and_reduces_shards_in_every_pass_and_reduces_replicas_once():
    assert sum(sent("zero3", accumulation=3).values()) == 3 * sum(sent("zero3").values())
    assert sent("zero1", accumulation=3) == sent("zero1")


def test_adapters_alone_have_gradients_to_send():
    adapters = 2 * NUM_LAYERS * (4 * (WIDTH + 48) + 4 * (WIDTH + 24))
    assert sent("zero2", lora=Lora(rank=4))["gradients"] == adapters
    assert sent("zero1", lora=Lora(rank=4))["gradients"] == 2 * adapters  # an all-reduce


def test_frozen_layers_are_gathered_once_but_for_the_last_which_comes_unasked():
    whole, frozen = sent("zero3"), sent("zero3", frozen_layers=3)
    again = "weights of layers, for backward"
    assert frozen[again] == whole[again] * 3 / NUM_LAYERS
    assert frozen["weights, for forward"] == whole["weights, for forward"]


# Tensor, sequence and context parallelism


def test_tensor_parallelism_reduces_each_branch_and_each_projections_gradient():
    found = sent("tensor")
    assert found == {
        "outputs of layers' branches": 2 * 2 * NUM_LAYERS * STATES,
        "scores of the vocabulary": 2 * BATCH * SEQ * VOCAB,
        "gradients of projections' inputs": 2 * (5 * NUM_LAYERS + 1) * STATES,  # q, k, v, gate, up; the head
    }


def test_fused_projections_reduce_twice_a_layer_each_way_as_megatron_does():
    content = {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_layer": 3, "n_embd": 48, "n_head": 4}
    found = sent("tensor", config=read_config(content, name="gpt2"), loss="sum")
    assert set(found.values()) == {2 * 2 * 3 * STATES}


def test_full_checkpointing_repeats_the_reduction_of_attention_alone():
    """The last of a layer is not needed for backward, and recomputation stops before it."""
    again = sent("tensor", checkpoint="full")["outputs of layers' branches, again"]
    assert again == sent("tensor")["outputs of layers' branches"] / 2


def gpt2(**changes):
    content = {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_layer": 3, "n_embd": 48, "n_head": 4}
    return read_config(content | changes, name="gpt2")


def bert():
    content = {"model_type": "bert", "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 4}
    return read_config(content | {"intermediate_size": 96, "architectures": ["BertModel"]}, name="bert")


@pytest.mark.parametrize(
    ("config", "dropout", "num_sums"),
    [
        (gpt2(), True, 6),  # the mask of the last dropout is needed, and the sum is what it drops from
        (gpt2(), False, 3),
        (bert(), True, 6),  # each branch ends with a norm, whose input is needed
        (bert(), False, 6),
    ],
    ids=["gpt2 with dropout", "gpt2", "bert with dropout", "bert"],
)
def test_full_checkpointing_repeats_both_reductions_where_something_after_the_last_is_needed(config, dropout, num_sums):
    found = sent("tensor", config=config, loss="sum", checkpoint="full", dropout=dropout)
    assert found["outputs of layers' branches, again"] == 2 * num_sums * STATES
    if config.model_type == "gpt2":  # "sequence" cannot read BERT's first token
        found = sent("sequence", config=config, loss="sum", checkpoint="full", dropout=dropout)
        assert found["embeddings and outputs of branches, again"] == num_sums * STATES


def test_the_lowest_learning_layer_reduces_no_gradient_of_an_input_that_needs_none():
    """After a norm at the end of a layer, queries, keys and values of the next read its output itself."""
    learning_norms = sent("tensor", config=gpt2(), loss="sum", frozen_layers=1)
    assert learning_norms["gradients of projections' inputs"] == 2 * (2 * 2) * STATES  # each of two layers: qkv, up
    frozen_below = sent("tensor", config=bert(), loss="sum", frozen_layers=1)
    assert frozen_below["gradients of projections' inputs"] == 2 * (4 + 1) * STATES  # q, k, v, up; and up alone


@pytest.mark.parametrize("kind", ["zero3", "tensor", "sequence", "context"])
def test_frozen_layers_are_gone_back_through_where_checkpoints_make_embeddings_learn(kind):
    """What is sent for activations, and for weights on the way back, is then as if nothing were frozen."""
    apart = {"gradients", "gradients of weights", "gradients of outputs of branches"}  # the frozen tables have none
    whole, frozen = (sent(kind, checkpoint="full", frozen_layers=layers) for layers in (0, 3))
    assert {what: size for what, size in frozen.items() if what not in apart} == {
        what: size for what, size in whole.items() if what not in apart
    }


def test_keys_and_values_pass_again_for_layers_that_learn_alone():
    whole, frozen = sent("context"), sent("context", frozen_layers=3)
    for what in ("keys and values, for backward", "gradients of keys and values"):
        assert frozen[what] == pytest.approx(whole[what] * 2 / NUM_LAYERS)
    assert frozen["keys and values"] == whole["keys and values"]


def test_sequence_parallelism_sends_as_much_forward_as_tensor_parallelism():
    """Korthikanti et al. 2022, section 4.2.2: an all-reduce is a reduce-scatter and an all-gather."""
    config = llama()
    headless = dataclasses.replace(config, head=None)
    tensor = sent("tensor", config=headless, loss="sum", phase="prefill")
    sequence = sent("sequence", config=headless, loss="sum", phase="prefill")
    assert sum(sequence.values()) - STATES == sum(tensor.values())  # and the embeddings


def test_keys_and_values_pass_all_other_devices():
    by_hand = 2 * BATCH * SEQ * 4 * 2 * 8 * NUM_LAYERS  # bytes of all keys and values: 4 heads of 6 numbers, padded
    found = sent("context")
    del found["gradients of weights"]
    assert found == {
        "keys and values": by_hand,  # N - 1 times a share of 1 / N
        "keys and values, for backward": by_hand,
        "gradients of keys and values": 2 * by_hand * 4 / 3,  # float32, and home again at the end
    }


@pytest.mark.parametrize("kind", SHARDINGS)
def test_a_prefill_sends_nothing_for_backward(kind):
    whats = set(sent(kind, phase="prefill"))
    assert not any("gradient" in what or "backward" in what or "again" in what for what in whats)


@pytest.mark.parametrize("kind", SHARDINGS)
def test_what_a_device_sends_hardly_grows_with_their_number(kind):
    config = llama(num_attention_heads=16, num_key_value_heads=16, head_dim=6)
    few, many = (
        sum(one.sent_bytes for one in travels(config, workload(), Sharding(kind=kind, num_devices=number)))
        for number in (2, 16)
    )
    assert few <= many <= 2 * few


def test_what_cannot_be_spread_sends_nothing_and_says_so():
    with pytest.raises(UnsupportedError, match="number of heads that the number of devices divides"):
        travels(llama(), workload(), Sharding(kind="tensor", num_devices=3))
