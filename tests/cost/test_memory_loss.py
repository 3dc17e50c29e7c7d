"""Losses of language models: predicted against transformers' own, and against chunks under checkpoints."""

import dataclasses

import pytest
import torch
import transformers
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from headwise.config.huggingface import read_config
from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.step.loss import NUM_CHUNKS
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

VOCAB = 1997  # large enough for the scores to outweigh all the rest
SHARED = {"vocab_size": VOCAB, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "bert": SHARED
    | {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37, "max_position_embeddings": 53},
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "llama": SHARED
    | {
        "hidden_size": 24,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": 37,
        "max_position_embeddings": 53,
    },
}
BATCH, SEQ = 3, 29


def build(family, **changes):
    config = transformers.AutoConfig.for_model(family, **(FAMILIES[family] | changes))
    auto = transformers.AutoModelForMaskedLM if family == "bert" else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="sdpa")
    content = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return model, read_config(content, name=family)


def inputs(batch=BATCH, seq=SEQ):
    ids = torch.randint(3, VOCAB, (batch, seq))
    return {"input_ids": ids, "labels": ids.clone()}


def work(loss, batch=BATCH, seq=SEQ, **settings):
    return Workload(batch=batch, seq=seq, device="cpu", loss=loss, **settings)


def allowance(config):
    """Bytes of what a peak leaves out: numbers that Python hands to an operation, and two rows of sums in a norm."""
    return 2 * 4 * config.embed_dim + 8 * 8 * config.num_layers


@pytest.mark.parametrize(
    ("family", "tied"), [("bert", True), ("gpt2", True), ("gpt2", False), ("llama", True), ("llama", False)]
)
def test_cross_entropy_saves_and_needs_what_transformers_own_does(family, tied):
    model, config = build(family, tie_word_embeddings=tied)
    measured = measure_training_step(model, inputs(), loss=lambda output: output.loss, optimizer="sgd")
    predicted = predict_step(config, work("cross_entropy", optimizer="sgd"))
    assert predicted.parameter_bytes == measured.parameter_bytes
    assert predicted.saved_bytes == measured.saved_bytes
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= allowance(config)


@pytest.mark.parametrize("seq", [2, 11])
def test_labels_of_a_single_text_are_a_view_of_the_padded_ones(seq):
    model, config = build("llama")
    measured = measure_training_step(model, inputs(1, seq), loss=lambda output: output.loss, optimizer="sgd")
    assert predict_step(config, work("cross_entropy", 1, seq, optimizer="sgd")).saved_bytes == measured.saved_bytes


def test_a_narrow_models_scores_are_cast_before_the_loss():
    model, config = build("llama")
    batch, seq = 2, 7  # products of narrow numbers are slow on a CPU
    measured = measure_training_step(
        model.to(torch.bfloat16), inputs(batch, seq), loss=lambda output: output.loss, optimizer="sgd"
    )
    predicted = predict_step(config, work("cross_entropy", batch, seq, optimizer="sgd", precision="bf16"))
    assert predicted.saved_bytes == measured.saved_bytes
    ledger = predict_ledger(config, work("cross_entropy", batch, seq, optimizer="sgd", precision="bf16"))
    alive = [entry for entry in ledger.alive(ledger.moments.index("loss")) if entry.shape == (batch, seq, VOCAB)]
    assert sorted(entry.dtype for entry in alive) == ["bfloat16", "float32", "float32"]


class Chunked(torch.nn.Module):
    """A language model whose loss is taken of chunks of tokens, each under a checkpoint."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        body, head = self.model.base_model, self.model.get_output_embeddings()
        hidden = body(input_ids=input_ids, use_cache=False).last_hidden_state
        targets = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)

        def chunk_loss(states, chunk_targets):
            return functional.cross_entropy(head(states).float(), chunk_targets, reduction="sum")

        chunks = zip(hidden.flatten(0, 1).chunk(NUM_CHUNKS), targets.chunk(NUM_CHUNKS), strict=True)
        total = sum(checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks)
        return total / (targets != -100).sum()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_chunked_cross_entropy_saves_and_needs_what_chunks_under_checkpoints_do(family, tied):
    model, config = build(family, tie_word_embeddings=tied)
    measured = measure_training_step(Chunked(model), inputs(), loss=lambda loss: loss, optimizer="sgd")
    predicted = predict_step(config, work("chunked_cross_entropy", optimizer="sgd"))
    assert predicted.saved_bytes == measured.saved_bytes
    assert abs(predicted.peak_bytes - measured.peak_bytes) <= allowance(config)


def test_a_chunked_loss_never_holds_all_scores():
    config = preset("llama-3-8b")
    plain = Workload(batch=1, seq=8192, precision="bf16", loss="cross_entropy")
    chunked = dataclasses.replace(plain, loss="chunked_cross_entropy")
    vocab = config.vocab_size
    tokens = {entry.shape[0] for entry in predict_ledger(config, chunked).entries if entry.shape[-1:] == (vocab,)}
    assert tokens == {8192 // NUM_CHUNKS}
    scores = 4 * 8192 * vocab
    saved = predict_step(config, plain).saved_bytes - predict_step(config, chunked).saved_bytes
    assert saved == pytest.approx(scores, rel=0.01)


def test_fewer_tokens_than_chunks_make_fewer_chunks():
    config = preset("gpt2")
    ledger = predict_ledger(config, Workload(batch=1, seq=3, loss="chunked_cross_entropy"))
    assert {entry.shape[0] for entry in ledger.entries if entry.shape[-1:] == (config.vocab_size,)} == {1}


@pytest.mark.parametrize("loss", ["cross_entropy", "chunked_cross_entropy"])
def test_a_model_without_scores_of_words_is_refused(loss):
    with pytest.raises(
        ConfigError, match=rf"loss '{loss}' needs a language-model head; .* has no head: read .* or give loss 'sum'"
    ):
        predict_step(dataclasses.replace(preset("gpt2"), head=None), Workload(batch=1, seq=3, loss=loss))


def test_a_chunked_loss_caps_the_scores_of_each_piece():
    """What tanh keeps is made again in backward, so that nothing more is saved."""
    capped = preset("gemma-2-9b")
    plain = dataclasses.replace(capped, head=dataclasses.replace(capped.head, softcap=None))
    workload = Workload(batch=1, seq=64, attention="eager", loss="chunked_cross_entropy")
    names = [
        {entry.name for entry in predict_ledger(config, workload).entries if entry.shape == (8, 256_000)}
        for config in (plain, capped)
    ]
    assert names[1] - names[0] == {"output scores, capped"}
    saved = [predict_step(config, workload).saved_bytes for config in (plain, capped)]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_prefill_makes_its_scores_whatever_the_loss(family):
    _, config = build(family)
    steps = [predict_step(config, work(loss, phase="prefill")) for loss in ("cross_entropy", "chunked_cross_entropy")]
    assert steps[0] == steps[1]
    ledger = predict_ledger(config, work("chunked_cross_entropy", phase="prefill"))
    assert any(entry.name == "output scores" for entry in ledger.entries)
