"""What a step minimises, on a tape: a sum, or the cross-entropy of a language model's scores.

Cross-entropy is transformers 5.24's: of a decoder the scores in float32 against the next token, of an encoder the
scores as they are against the labels. Its log-probabilities, as large as the scores, are kept; backward makes two more.

The chunked one cuts the tokens into `NUM_CHUNKS` pieces. Each piece goes through the output projection, its cap and
the loss under a checkpoint: its scores are dropped, and made again in backward.
"""

from headwise.config.model import ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast, cast_inputs
from headwise.cost.step.checkpointing import checkpointed
from headwise.cost.step.head import play_scores
from headwise.cost.step.run import Weights
from headwise.cost.step.tape import Storage, Value
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

NUM_CHUNKS = 8
"""Pieces of the chunked cross-entropy, as torchtune's loss cuts them by default."""


def require_scores(config: ModelConfig, workload: Workload) -> None:
    """Raise ConfigError if the loss needs a language model's scores and the config has no such head."""
    if workload.loss != "sum" and (config.head is None or config.head.kind != "language_model"):
        found = "no head" if config.head is None else f"a {config.head.kind} head"
        raise ConfigError(
            f"loss {workload.loss!r} needs a language-model head; {config.name} has {found}: "
            "read the model with a head, or give loss 'sum'"
        )


def total(x: Value) -> Value:
    """The sum, in float32, of all numbers."""
    return ops.total("loss", cast(x, "float32"))


def cross_entropy(config: ModelConfig, scores: Value, labels: Storage) -> Value:
    """The mean cross-entropy of scores (B, T, V) against labels (B, T)."""
    if config.kind == "encoder":
        return _negative_likelihood(scores, labels)
    scores = cast(scores, "float32")
    targets, _padded = _shift(labels)
    return _negative_likelihood(scores, targets)


def chunked_cross_entropy(config: ModelConfig, states: Value, weights: Weights, labels: Storage) -> Value:
    """The same mean of the scores that the head gives states (B, T, E), piece by piece."""
    head, tape = config.head, states.storage.tape
    assert head is not None, "checked by require_scores"
    targets = labels if config.kind == "encoder" else _shift(labels)[0]
    targets.record.is_kept = tape.grad_enabled  # a checkpoint saves them too
    count = tape.new("number of labels", (), "int64")
    batch, seq, width = states.shape
    tokens = batch * seq
    pieces = ops.split_rows(ops.view(states, (tokens, width)), -(-tokens // NUM_CHUNKS))

    def one_piece(piece: Value) -> Value:
        return _negative_likelihood(cast(play_scores(head, weights, piece), "float32"), targets)

    loss = None
    for piece in pieces:
        part = checkpointed(tape, one_piece, piece)
        loss = ops.shift("loss", part) if loss is None else ops.add("loss", loss, part)
    assert loss is not None, "there is a token"
    return tape.apply("mean loss", (), fresh=(loss,), kept=(count,))


def _shift(labels: Storage) -> tuple[Storage, Storage]:
    """Return for each token the next one as its label, and the padded labels that it was cut from."""
    batch, seq = labels.record.shape
    padded = labels.tape.new("labels, padded", (batch, seq + 1), "int64")
    if batch == 1:  # the part of a single row lies in memory as a row does: no copy is made
        return padded, padded
    return labels.tape.new("labels of the next tokens", (batch, seq), "int64"), padded


def _negative_likelihood(scores: Value, targets: Storage) -> Value:
    tape = scores.storage.tape
    (scores,) = cast_inputs("cross_entropy", scores)
    shares = tape.apply("log-probabilities", scores.shape, fresh=(scores,), keeps_result=True)
    weight = tape.new("total weight of the labels", (), shares.dtype)
    return tape.apply("loss", (), fresh=(shares,), kept=(shares.storage, targets, weight))
