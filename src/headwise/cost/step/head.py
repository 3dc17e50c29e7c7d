"""What stands on the last layer, on a tape: the final norm, a pooler, and the head."""

from headwise.config.model import ModelConfig, OutputHead
from headwise.cost.step import operations as ops
from headwise.cost.step.layers import normalise, project
from headwise.cost.step.run import Run, Weights
from headwise.cost.step.tape import Value


def play_head(run: Run, config: ModelConfig, weights: Weights, x: Value) -> tuple[Value, ...]:
    """Return what the loss reads, then what else the model returns.

    In training with the chunked loss these are the states that the output projection reads.
    """
    head = config.head
    if config.final_norm:
        x = normalise(run, "last hidden state", x, weights, "final norm")
    if run.family.drops_last_state:
        x = run.dropout("last hidden state", x, config.embedding_dropout_p)
    pooled = _pool(run, config, weights, x) if config.pooler else None
    run.leave_body()
    if head is None:
        return (x,) if pooled is None else (x, pooled)
    states = x
    if not head.per_token and run.family.has_plain_head:
        states = ops.mean_over_tokens("mean state", x)
    elif not head.per_token:
        states = ops.first_token(x) if pooled is None else pooled
    if head.transform:
        states = project("transform output", states, weights, "transform")
        states = ops.activation("transform, active", states, config.blocks[0].feed_forward.activation)
        states = normalise(run, "transform, normed", states, weights, "transform norm")
    states = run.dropout("head input", states, head.dropout_p)
    if run.workload.phase == "train" and run.workload.loss == "chunked_cross_entropy":
        return (states,)
    scores = play_scores(head, weights, states, holds_uncapped=run.family.has_plain_head)
    # A decoder of transformers that classifies texts scores every token.
    is_of_texts = head.kind == "classifier" and config.kind == "decoder" and not head.bias
    is_of_texts = is_of_texts and not run.family.has_plain_head
    return (_pick_last(scores), scores) if is_of_texts else (scores,)


def play_scores(head: OutputHead, weights: Weights, states: Value, *, holds_uncapped: bool = False) -> Value:
    """Project states to the scores, and cap them where the head does; ours holds what they were until it returns."""
    scores = project("output scores", states, weights, "output")
    if head.softcap is None:
        return scores
    _uncapped = scores if holds_uncapped else None
    scores = ops.scale("output scores over the cap", scores)
    scores = ops.tanh("output scores, tanh", scores)
    return ops.scale("output scores, capped", scores)


def _pool(run: Run, config: ModelConfig, weights: Weights, x: Value) -> Value:
    first = ops.first_token(x)
    if run.family.drops_before_pooler and config.head is not None:
        first = run.dropout("pooler input", first, config.head.dropout_p)
    return ops.tanh("pooled state", project("pooler output", first, weights, "pooler"))


def _pick_last(scores: Value) -> Value:
    """The scores of each text's last token; keeps the indices."""
    tape = scores.storage.tape
    batch, _, num_outputs = scores.shape
    indices = [tape.new(f"index of the {name}", (batch,), "int64") for name in ("text", "last token")]
    return tape.apply("scores of the last token", (batch, num_outputs), fresh=(scores,), kept=indices)
