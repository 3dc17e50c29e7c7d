"""DeepSeek V3 on a tape: keys and values through one small latent vector a token, experts with shared ones."""

from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.caching import update_latent_cache
from headwise.cost.step.experts import mix_experts, route_by_sigmoid
from headwise.cost.step.families.llama import ROTARY_BUFFERS, embed
from headwise.cost.step.heads import rotate_interleaved, split_heads
from headwise.cost.step.layers import gated_feed_forward, normalise, project, rotate_both
from headwise.cost.step.run import Family, Run, Weights
from headwise.cost.step.tape import Value


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise(run, "attention input", x, weights, "attention norm")
        assert isinstance(block.attention, LatentAttentionConfig), "checked by family_of"
        x, _attention_weights = _attention(run, block.attention, weights, x)
        x = ops.add("residual after attention", residual, x)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise(run, "feed-forward input", x, weights, "feed-forward norm")
        if block.feed_forward.num_experts > 1:
            x = _mix_experts(block.feed_forward, weights, x)
        else:
            x = gated_feed_forward(block.feed_forward, weights, x)
        return ops.add("residual after feed-forward", residual, x)


def _mix_experts(config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    """Add what the shared expert, if there is one, says of each token to what its own experts say."""
    routed = mix_experts(x, config, weights, route_by_sigmoid)
    if not config.shared_hidden_dim:
        return routed
    return ops.add("sum with the shared expert", routed, gated_feed_forward(config, weights, x, prefix="shared "))


def _attention(run: Run, config: LatentAttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    query = split_heads(_project_query(run, x, weights), config.num_heads, config.head_dim)
    query_plain, query_turned = ops.split(query, (config.qk_nope_head_dim, config.qk_rope_head_dim))
    joined = project("latent and rotary key", x, weights, "kv_a_proj")
    latent, key_turned = ops.split(joined, (config.kv_lora_rank, config.qk_rope_head_dim))
    del joined
    latent = normalise(run, "latent, normed", latent, weights, "latent norm")
    key_turned = split_heads(key_turned, 1, config.qk_rope_head_dim)
    if config.position.pairing == "interleaved":
        assert run.cosine is not None and run.sine is not None, "the embeddings make the angles"
        query_turned = rotate_interleaved("query", query_turned, run.cosine, run.sine)
        key_turned = rotate_interleaved("key", key_turned, run.cosine, run.sine)
    else:
        query_turned, key_turned = rotate_both(run, query_turned, key_turned)
    latent, key_turned = update_latent_cache(run, config, latent, key_turned)
    query = ops.join("query, rotated", query_plain, query_turned)
    key, value = _expand(config, weights, latent, key_turned)
    attended, attention_weights = attend(run, config, query, key, value)
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


def _project_query(run: Run, x: Value, weights: Weights) -> Value:
    if "q_proj weight" in weights:
        return project("query", x, weights, "q_proj")
    x = project("latent query", x, weights, "q_a_proj")
    x = normalise(run, "latent query, normed", x, weights, "latent query norm")
    return project("query", x, weights, "q_b_proj")


def _expand(config: LatentAttentionConfig, weights: Weights, latent: Value, key_turned: Value) -> tuple[Value, Value]:
    """Make every head's keys and values from the latent vector; the rotary key is shared by all heads."""
    both = project("keys and values", latent, weights, "kv_b_proj")
    both = split_heads(both, config.num_heads, config.qk_nope_head_dim + config.v_head_dim)
    key_plain, value = ops.split(both, (config.qk_nope_head_dim, config.v_head_dim))
    batch, heads, seq, _ = key_plain.shape
    key = latent.storage.tape.apply(
        "key", (batch, heads, seq, config.head_dim), fresh=(key_plain, key_turned), layout="heads"
    )
    return key, value


DEEPSEEK_V3 = Family(
    embed,
    _layer,
    ("attention", "feed-forward", "attention norm", "feed-forward norm"),
    parts=frozenset({"interleaved", "gated", "shared expert"}),
    attention=(LatentAttentionConfig,),
    has_experts=True,
    buffers=ROTARY_BUFFERS,
)
