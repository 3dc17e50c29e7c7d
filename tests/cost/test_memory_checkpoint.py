"""Checkpointed steps and accumulated gradients: predicted against real steps, and what checkpointing frees."""

import dataclasses

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.workload import Workload

VOCAB = 97
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": 5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
}
FAMILIES = {
    "bert": SHARED
    | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53},
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 7},
    "mixtral": LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 36},
}
DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
}
BATCH, SEQ = 7, 47


def compare(family, workload, dropout_p=0.0, **changes):
    """Predict and measure one step of a tiny model."""
    dropouts = dict.fromkeys(DROPOUTS.get(family, ("attention_dropout",)), dropout_p)
    config = transformers.AutoConfig.for_model(family, **(FAMILIES[family] | dropouts | changes))
    model = transformers.AutoModel.from_config(config, attn_implementation=workload.attention)
    content = model.config.to_dict() | {"architectures": [type(model).__name__]}
    described = read_config(content, name=family)
    ids = torch.randint(3, VOCAB, (workload.batch, workload.seq))
    measured = measure_training_step(model, {"input_ids": ids}, workload=workload)
    return predict_step(described, workload), measured, described


def allowance(config):
    """Bytes of what a peak leaves out: numbers that Python hands to an operation, and two rows of sums in a norm."""
    return 2 * 4 * config.embed_dim + 8 * 8 * config.num_layers


def work(**settings):
    return Workload(batch=BATCH, seq=SEQ, device="cpu", **settings)


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpoint", ["full", "selective"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpointed_step_saves_and_needs_what_the_real_one_does(family, checkpoint, attention, dropout_p):
    predicted, measured, config = compare(family, work(checkpoint=checkpoint, attention=attention), dropout_p)
    assert predicted.saved_bytes == measured.saved_bytes
    # Experts and a mask tensor make kernels ask for more of their own; all else is exact but for small numbers.
    slack = measured.peak_bytes // 100 if family in ("mistral", "mixtral") else allowance(config)
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= slack


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("accumulation", [2, 3])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_earlier_gradients_are_alive_while_further_texts_run(family, accumulation, checkpoint):
    predicted, measured, config = compare(family, work(accumulation=accumulation, checkpoint=checkpoint))
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.peak_moment == measured.peak_moment == "backward"
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= allowance(config)


def test_gradients_are_there_from_the_first_moment_on_where_they_add_up():
    config = preset("llama-3.2-1b")
    ledger = predict_ledger(config, Workload(batch=1, seq=64, accumulation=4))
    gradients = [entry for entry in ledger.entries if entry.kind == "gradient"]
    assert sum(entry.bytes for entry in gradients) == ledger.kind_bytes("parameter")
    assert all(entry.born == 0 and entry.freed is None for entry in gradients)
    once = predict_step(config, Workload(batch=1, seq=64))
    often = predict_step(config, Workload(batch=1, seq=64, accumulation=4))
    assert often.peak_bytes >= once.peak_bytes
    assert often == predict_step(config, Workload(batch=1, seq=64, accumulation=2))


def test_full_checkpointing_saves_the_input_of_every_layer():
    config = preset("llama-2-7b")
    none = Workload(batch=2, seq=512, precision="bf16")
    full = dataclasses.replace(none, checkpoint="full")
    ledger = predict_ledger(config, full)
    hidden = 2 * 2 * 512 * config.embed_dim
    inside = [entry for entry in ledger.entries if entry.kind == "saved" and entry.owner.startswith("layer ")]
    assert (
        sum(entry.bytes for entry in inside) == (config.num_layers - 1) * hidden
    )  # the first one's is the embeddings'
    assert predict_step(config, none).saved_bytes > 10 * predict_step(config, full).saved_bytes


def test_selective_checkpointing_frees_the_score_matrices_of_eager_attention():
    """Korthikanti et al. 2022, section 5: of 34 + 5 a s / h bytes for each of s b h numbers, the second term goes."""
    config = preset("gpt2")
    none = Workload(batch=2, seq=256, attention="eager", device="cuda")
    freed = (
        predict_step(config, none).saved_bytes
        - predict_step(config, dataclasses.replace(none, checkpoint="selective")).saved_bytes
    )
    pairs = 2 * 12 * 256**2
    # Softmax, its dropout, and the mask of a byte; the values that the product reads are copied head by head.
    assert freed == config.num_layers * (2 * 4 + 1) * pairs


def test_selective_checkpointing_frees_nothing_but_normalisers_of_a_fused_kernel():
    config = preset("llama-3-8b")
    none = Workload(batch=1, seq=4096, precision="bf16")
    selective = dataclasses.replace(none, checkpoint="selective")
    before, after = predict_step(config, none), predict_step(config, selective)
    logsumexp, random_state = 4 * 32 * 4096, 3 * 8
    assert before.saved_bytes - after.saved_bytes == config.num_layers * (logsumexp + random_state)
    assert abs(before.peak_bytes - after.peak_bytes) < before.peak_bytes / 100


def test_a_prefill_is_the_same_with_a_checkpoint():
    config = preset("gpt2")
    plain = Workload(batch=1, seq=32, phase="prefill")
    assert predict_step(config, plain) == predict_step(config, dataclasses.replace(plain, checkpoint="full"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_selectively_checkpointed_t5_holds_its_biases_and_saves_none(attention):
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 37, "num_heads": 4, "num_layers": 2, "dropout_rate": 0.0}
    content = {"model_type": "t5", "vocab_size": VOCAB, "decoder_start_token_id": 0, **sizes}
    config = transformers.T5Config(**content)
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=attention)
    ids = torch.randint(3, VOCAB, (1, 16))
    workload = Workload(batch=1, seq=16, device="cpu", checkpoint="selective", attention=attention)
    measured = measure_training_step(model, {"input_ids": ids, "decoder_input_ids": ids}, workload=workload)
    predicted = predict_step(read_config(content, name="t5"), workload)
    assert predicted.parameter_bytes == measured.parameter_bytes
    assert predicted.saved_bytes == measured.saved_bytes
