"""GPT-NeoX (Pythia) on a tape: attention and feed-forward side by side, a part of each head turned."""

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.caching import update_cache
from headwise.cost.step.families.llama import ROTARY_BUFFERS, embed
from headwise.cost.step.heads import split_heads
from headwise.cost.step.layers import feed_forward, normalise, project, rotate_first_part
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Value


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    with run.tape.owned_by(f"{run.layer} attention"):
        normed = normalise(run, "attention input", x, weights, "attention norm")
        attended, _attention_weights = _attention(run, attention_of(block), weights, normed)
        del normed
        attended = run.dropout("out_proj output", attended, block.dropout_p)
        if not block.parallel:
            attended = ops.add("residual after attention", attended, x)
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        read = x if block.parallel else attended
        normed = normalise(run, "feed-forward input", read, weights, "feed-forward norm")
        thought = feed_forward(block.feed_forward, weights, normed)
        del normed
        thought = run.dropout("down_proj output", thought, block.dropout_p)
        total = ops.add("sum of both parts", thought, attended)
        return ops.add("residual after both parts", total, x) if block.parallel else total


def _attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    joined = project("query, key and value", x, weights, "qkv_proj")
    query, key, value = ops.split(split_heads(joined, config.num_heads, 3 * config.head_dim), (config.head_dim,) * 3)
    del joined
    query, key = rotate_first_part(run, query, key)
    key, value = update_cache(run, config, key, value)
    attended, attention_weights = attend(run, config, query, key, value)
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


GPT_NEOX = Family(
    embed,
    _layer,
    ("attention norm", "feed-forward norm", "attention", "feed-forward"),
    fused=frozenset({"qkv_proj"}),
    parts=frozenset({"rotary_dim", "parallel", "plain", "dropout_p"}),
    buffers=ROTARY_BUFFERS,
)
