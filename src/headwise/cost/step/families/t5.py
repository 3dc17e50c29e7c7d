"""T5 on a tape: an encoder, and a decoder that reads it too; biases on the scores that layers share."""

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.config.position import T5Bias
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.autocast import cast
from headwise.cost.step.caching import find_cached, update_cache
from headwise.cost.step.heads import look_up_bias, split_heads
from headwise.cost.step.layers import normalise, project, project_heads
from headwise.cost.step.norms import rms_norm_of_t5
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Storage, Value


def _embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    """Look tokens up; of an encoder-decoder, run the encoder first."""
    if config.encoder is None or run.workload.phase == "decode":
        run.encoded = inputs.get("encoder output")
        return _look_up(run, config, weights, inputs["token ids"].storage)
    with run.tape.owned_by("encoder"):
        x = _look_up(run, config, weights, inputs["source ids"].storage)
    for index, block in enumerate(config.encoder.blocks):
        run.tape.begin(f"forward: encoder layer {index}")
        run.layer = f"encoder layer {index}"
        x = _layer(run, block, run.encoder_weights[index], x)
    run.tape.begin("forward: encoder norm")
    with run.tape.owned_by("encoder"):
        x = normalise(run, "encoded", x, weights, "encoder final norm")
        run.encoded = run.dropout("encoded", x, config.embedding_dropout_p)
    run.bias = None
    run.held.clear()
    del x
    run.tape.begin("forward: decoder embeddings")
    return _look_up(run, config, weights, inputs["token ids"].storage)


def _look_up(run: Run, config: ModelConfig, weights: Weights, ids: Storage) -> Value:
    shape = (run.workload.batch, run.workload.query_len, config.embed_dim)
    x = ops.embedding("token embeddings", weights["token table"], ids, shape)
    run.held.append(x.storage)
    return run.dropout("embeddings", x, config.embedding_dropout_p)


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    with run.tape.owned_by(f"{run.layer} attention"):
        normed = normalise(run, "attention input", x, weights, "attention norm")
        attended, _attention_weights = _attend_to_itself(run, attention_of(block), weights, normed)
        attended = run.dropout("out_proj output", attended, block.dropout_p)
        x = _clamp(ops.add("residual after attention", x, attended))
        del normed, attended
    if block.cross_attention is not None:
        with run.tape.owned_by(f"{run.layer} cross-attention"):
            normed = normalise(run, "cross-attention input", x, weights, "cross-attention norm")
            attended, _attention_weights = _attend_to_encoder(run, block.cross_attention, weights, normed)
            attended = run.dropout("cross out_proj output", attended, block.dropout_p)
            x = _clamp(ops.add("residual after cross-attention", x, attended))
            del normed, attended
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        thought = normalise(run, "feed-forward input", x, weights, "feed-forward norm")
        thought = _feed_forward(run, block.feed_forward, weights, thought)
        thought = run.dropout("down_proj output", thought, block.dropout_p)
        return _clamp(ops.add("residual after feed-forward", x, thought))


def _attend_to_itself(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    query, key, value = project_heads(x, weights, config)
    if run.workload.phase != "train":
        key, value = update_cache(run, config, key, value) if run.encoded is not None else (key, value)
    elif run.encoded is not None:
        key, value = _copy(run, key), _copy(run, value)
    if run.bias is None:
        run.bias = look_up_bias(weights["bias table weight"], query.shape[2], key.shape[2])
    attended, attention_weights = attend(run, config, query, key, value, softmax="throughout", bias=run.bias)
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


def _attend_to_encoder(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    """Attend to what the encoder said; a bias of zeros stands where the other attention has its own."""
    query, key, value = _project_to_encoder(run, config, weights, x)
    if run.cross_bias is None:
        shape = (1, config.num_heads, query.shape[2], key.shape[2])
        run.cross_bias = Value(shape, run.tape.new("bias of zeros", shape, query.dtype, layout="heads"))
    attended, attention_weights = attend(run, config, query, key, value, softmax="throughout", bias=run.cross_bias)
    return project("cross out_proj output", attended, weights, "cross out_proj"), attention_weights


def _project_to_encoder(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value, Value]:
    """Project to queries, keys and values; those of the encoder's output are made once, and cached."""
    if run.workload.phase == "decode":
        query = split_heads(project("query", x, weights, "cross q_proj"), config.num_heads, config.head_dim)
        shape = (query.shape[0], config.num_kv_heads, run.workload.seq)
        key = find_cached(run, "keys of the encoder's output", (*shape, config.head_dim), query.dtype)
        value = find_cached(run, "values of the encoder's output", (*shape, config.v_head_dim), query.dtype)
        return query, key, value
    query, key, value = project_heads(x, weights, config, source=run.encoded, prefix="cross ")
    if run.workload.phase == "prefill":
        key, value = update_cache(run, config, key, value)
    else:
        key, value = _copy(run, key), _copy(run, value)
    return query, key, value


def _copy(run: Run, x: Value) -> Value:
    """Copy keys or values of the decoder into its cache, which it has in training too."""
    cached = run.tape.apply(f"cached {x.storage.record.name}", x.shape, passed=(x,), layout="heads")
    run.cached.append(cached.storage)
    return cached


def _feed_forward(run: Run, config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    if config.gated:
        active = ops.activation("gate, active", project("gate", x, weights, "gate_proj"), config.activation)
        x = ops.multiply("feed-forward active", active, project("up", x, weights, "up_proj"))
        del active
    else:
        x = project("feed-forward hidden", x, weights, "up_proj")
        x = ops.activation("feed-forward active", x, config.activation)
    x = run.dropout("feed-forward active", x, config.dropout_p)
    x = cast(x, weights["down_proj weight"].dtype)
    return project("down_proj output", x, weights, "down_proj")


def _clamp(x: Value) -> Value:
    """Keep float16 numbers finite; keeps x and the two bounds."""
    if x.dtype != "float16":
        return x
    tape = x.storage.tape
    bounds = [tape.new(f"{end} bound", (), "float32") for end in ("lower", "upper")]
    name = x.storage.record.name
    return tape.apply(f"{name}, clamped", x.shape, fresh=(x,), kept=(x.storage, *bounds))


T5 = Family(
    _embed,
    _layer,
    (
        "attention",
        "attention norm",
        "cross-attention",
        "cross-attention norm",
        "feed-forward",
        "feed-forward norm",
    ),
    rms_norm=rms_norm_of_t5,
    drops_last_state=True,
    positions=(T5Bias,),
    parts=frozenset({"head_dim", "cross_attention", "gated", "plain", "dropout_p", "feed-forward dropout_p"}),
)
