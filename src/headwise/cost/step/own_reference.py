"""Our own attention by plain tensor operations, on a tape: `ops.reference`, variable by variable.

What a variable there holds until the call returns, one here holds too.
"""

from headwise.config.attention import AttentionConfig
from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import dropout_of
from headwise.cost.step.autocast import cast
from headwise.cost.step.idle import allowed_pairs, hide_idle, make_idle
from headwise.cost.step.run import Run
from headwise.cost.step.score_bias import ScoreBias, places_of
from headwise.cost.step.tape import Value
from headwise.masks.form import simplest_form


def attend_by_reference(
    run: Run,
    config: AttentionConfig,
    query: Value,
    key: Value,
    value: Value,
    *,
    bias: ScoreBias | None,
    sink: Value | None,
) -> Value:
    """Attend with all weights written out, in float32.

    Args:
        run, config: of the layer.
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        bias: what is added to the scores, or None.
        sink: one more logit of each head, (H,), float32, or None.
    """
    tape, dtype = run.tape, query.dtype
    batch, num_heads, seq, _ = query.shape
    is_empty = allowed = added = None
    if bias is not None or simplest_form(config.mask, seq, key.shape[2]).kind != "none":
        added = (
            None
            if bias is None
            else cast(bias.look_up(places_of(tape, batch, num_heads, seq, key.shape[2])), "float32")
        )
        allowed = allowed_pairs(tape, config.mask, places_of(tape, batch, num_heads, seq, key.shape[2]))
        if added is not None:
            allowed = _without_lowest(allowed, added)
            forbidden = tape.new("forbidden pairs", allowed.shape, "bool")
            added = ops.fill("bias of allowed pairs", added, forbidden)
            del forbidden
        idle = make_idle(tape, query, key, batch=allowed.shape[0], is_headed=allowed.shape[1] > 1)
        query, key, value, is_empty = hide_idle(idle, query, key, value)
        del idle
    rows = heads.stack_groups("query of each group", cast(query, "float32"), config.num_kv_heads)
    scores = heads.scores(ops.scale("query, scaled", rows), cast(key, "float32"))
    scores = ops.view(scores, (batch, num_heads, seq, key.shape[2]))
    if config.softcap is not None:
        scores = _cap(scores)
    if added is not None:
        scores = ops.add("attention scores, biased", scores, added)
    if allowed is not None:
        scores = _hide_forbidden(scores, allowed)
    weights = ops.softmax("attention weights", scores)
    logsumexp = None
    if sink is not None:
        logsumexp = ops.logsumexp("attention logsumexp", scores)
        share = ops.activation("share of the keys", ops.subtract("logsumexp over the sink", logsumexp, sink), "sigmoid")
        weights = ops.multiply("attention weights beside the sink", weights, ops.view(share, (*share.shape, 1)))
        del share
    if is_empty is not None:
        weights = ops.fill("attention weights, empty rows hidden", weights, is_empty)
        logsumexp = None if logsumexp is None else ops.fill("logsumexp, empty rows hidden", logsumexp, is_empty)
    dropped = ops.dropout("attention weights", weights, dropout_of(config, run.workload))
    of_rows = ops.view(dropped, (batch, config.num_kv_heads, config.queries_per_kv * seq, key.shape[2]))
    output = ops.view(heads.mix_values(of_rows, cast(value, "float32")), (batch, num_heads, seq, value.shape[3]))
    return cast(output, dtype)


def _without_lowest(allowed: Value, bias: Value) -> Value:
    """Say which pairs are allowed, and have no bias of -inf."""
    tape = bias.storage.tape
    is_lowest = tape.new("pairs of a bias of -inf", bias.shape, "bool")
    is_other = tape.new("pairs of another bias", bias.shape, "bool")
    del is_lowest
    shape = (max(allowed.shape[0], bias.shape[0]), *bias.shape[1:])
    both = Value(shape, tape.new("allowed pairs", shape, "bool"))
    del is_other
    return both


def _hide_forbidden(scores: Value, allowed: Value) -> Value:
    """Put -inf where a query may not read; one without a key is let see all."""
    tape = scores.storage.tape
    opened = tape.new("allowed pairs, all of empty rows", allowed.shape, "bool")
    hidden = tape.new("hidden pairs", allowed.shape, "bool")
    del opened
    return ops.fill("attention scores, masked", scores, hidden)


def _cap(scores: Value) -> Value:
    tanh = ops.tanh("attention scores, tanh", ops.scale("attention scores over the cap", scores))
    return ops.scale("attention scores, capped", tanh)
