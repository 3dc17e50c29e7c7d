"""What no forward pass plays is refused; what is played has all the weights of its config."""

from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwise.config.attention import ALiBi, AttentionConfig, T5Bias
from headwise.config.head import OutputHead
from headwise.config.huggingface import read_config
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig, PatchConfig
from headwise.config.position import Rotary
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.step.models import FAMILIES
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Causal, Full, SlidingWindow

SIZES = {"vocab_size": 13, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0}
OTHER_SIZES = {
    "gpt2": {"vocab_size": 13, "n_embd": 24, "n_head": 4, "n_layer": 2},
    "distilbert": {"vocab_size": 13, "dim": 24, "hidden_dim": 20, "n_layers": 2, "n_heads": 4},
    "t5": {"vocab_size": 13, "d_model": 24, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 4},
    "gpt_neox": SIZES | {"num_attention_heads": 3},
    "vit": SIZES | {"image_size": 8, "patch_size": 4},
    "qwen3_next": GROUPED
    | {
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_key_head_dim": 3,
        "linear_value_head_dim": 5,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 11,
    },
    "deepseek_v3": SIZES
    | {
        "q_lora_rank": 5,
        "kv_lora_rank": 7,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 5,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 11,
    },
}
OWN = ModelConfig(
    name="own",
    model_type="headwise",
    kind="decoder",
    embed_dim=24,
    vocab_size=13,
    max_positions=53,
    blocks=2
    * (
        BlockConfig(
            attention=AttentionConfig(embed_dim=24, num_heads=4),
            feed_forward=FeedForwardConfig(embed_dim=24, hidden_dim=20),
        ),
    ),
)


def base(family):
    if family == "headwise":
        return OWN
    return read_config({"model_type": family, **OTHER_SIZES.get(family, GROUPED)}, name=family)


# other values for settings of every config, by name
VALUES = {
    "projection_bias": (True, False, "qkv"),
    "position": (
        None,
        Rotary(),
        Rotary(rotary_dim=2),
        Rotary(pairing="interleaved"),
        ALiBi(),
        T5Bias(),
        T5Bias(owns_table=False),
    ),
    "mask": (Full(), Causal(), SlidingWindow(3), Causal() & ~SlidingWindow(2)),
    "norm": ("layernorm", "rmsnorm"),
    "norm_placement": ("pre", "post", "both", "output"),
    "qk_norm_over": ("head", "projection"),
    "activation": ("relu", "silu"),
    "softcap": (None, 5.0),
    "patches": (None, PatchConfig(image_size=8, patch_size=4)),
    "cross_attention": (None, AttentionConfig(embed_dim=24, num_heads=4, qk_norm=True)),
    "key_dim": (24, 7),
    "value_dim": (24, 7),
}
SMALL = {"num_heads": (1, 2), "num_kv_heads": (1, 2, 4), "head_dim": (2, 6, 8), "v_head_dim": (3, 6)}
SMALL |= {"num_experts": (1, 2), "shared_hidden_dim": (0, 3), "position_table_size": (0, 5), "num_token_types": (0, 2)}
KEPT = {"name", "model_type", "kind", "embed_dim", "dtype", "kv_layer", "blocks", "encoder", "head"}


def change(draw, config):
    """Another config with one setting changed, of the model itself or of a part of it; equal blocks change alike."""
    names = [field.name for field in fields(config)]
    parts = [name for name in names if is_dataclass(getattr(config, name)) and name not in ("mask", "position")]
    parts += ["blocks"] * ("blocks" in names)
    if parts and draw(st.booleans() if isinstance(config, ModelConfig) else st.just(True) | st.booleans()):
        name = draw(st.sampled_from(parts))
        if name != "blocks":
            return replace(config, **{name: change(draw, getattr(config, name))})
        index = draw(st.integers(0, len(config.blocks) - 1))
        changed = change(draw, config.blocks[index])
        only = draw(st.booleans())
        blocks = tuple(
            changed if place == index or (block is config.blocks[index] and not only) else block
            for place, block in enumerate(config.blocks)
        )
        return replace(config, blocks=blocks)
    name = draw(st.sampled_from([name for name in names if name not in KEPT]))
    before = getattr(config, name)
    choices = VALUES.get(name) or SMALL.get(name)
    if choices is None and isinstance(before, bool):
        choices = (True, False)
    elif choices is None and isinstance(before, float):
        choices = (0.0, 0.1)
    elif choices is None and isinstance(before, int):
        choices = (before, 3, 4)
    return config if choices is None else replace(config, **{name: draw(st.sampled_from(choices))})


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_config_is_refused_or_all_its_weights_are_on_the_tape(data):
    draw = data.draw
    config = base(draw(st.sampled_from(sorted(FAMILIES))))
    try:
        for _ in range(draw(st.integers(1, 3))):
            config = change(draw, config)
    except ConfigError:
        return
    seq = config.patches.num_tokens if config.patches else 3
    attention = draw(st.sampled_from(["eager", "sdpa"]))
    phase = draw(st.sampled_from(["train", "prefill"]))
    try:
        step = predict_step(config, Workload(batch=1, seq=seq, phase=phase, attention=attention, device="cpu"))
    except UnsupportedError:
        return
    assert step.parameter_bytes == 4 * count_parameters(config).total, config


def in_blocks(config, **changes):
    return replace(config, blocks=tuple(replace(block, **changes) for block in config.blocks))


def in_attention(config, **changes):
    attention = replace(config.blocks[0].attention, **changes)
    return in_blocks(config, attention=attention)


def in_feed_forward(config, **changes):
    return in_blocks(config, feed_forward=replace(config.blocks[0].feed_forward, **changes))


def with_head(config, *, kind="language_model", **settings):
    return replace(config, head=OutputHead(kind=kind, num_outputs=config.vocab_size, **settings))


def without_a_table(config):
    first = config.blocks[0]
    attention = replace(first.attention, position=replace(first.attention.position, owns_table=False))
    return replace(config, blocks=(replace(first, attention=attention), *config.blocks[1:]))


@pytest.mark.parametrize(
    ("family", "make", "text"),
    [
        ("headwise", lambda config: in_attention(config, position=T5Bias(owns_table=False)), "biases in another layer"),
        ("headwise", lambda config: in_attention(config, output_gate=True), "an output gate"),
        ("headwise", lambda config: with_head(config, transform=True), "a head with a transform"),
        ("headwise", lambda config: with_head(config, tied=True, bias=True), "a tied head with a bias"),
        ("headwise", lambda config: with_head(config, kind="classifier", softcap=5.0), "a classifier that is tied or"),
        ("headwise", lambda config: with_head(config, dropout_p=0.1), "dropout_p 0.1 before the scores"),
        ("llama", lambda config: in_feed_forward(config, dropout_p=0.1), "dropout in feed-forwards"),
        ("llama", lambda config: in_attention(config, position=Rotary(rotary_dim=2)), "rotary_dim 2"),
        ("llama", lambda config: in_attention(config, sink=True), "a sink"),
        ("gpt_neox", lambda config: in_blocks(config, parallel=True, shared_norm=True), "one norm for two branches"),
        ("headwise", lambda config: in_attention(config, qk_norm=True, qk_norm_over="projection"), "qk_norm over proj"),
        ("headwise", lambda config: replace(config, embedding_norm=True), "embedding_norm True"),
        ("headwise", lambda config: replace(config, num_token_types=2), "num_token_types 2"),
        ("headwise", lambda config: replace(config, pooler=True), "pooler True"),
        ("llama", lambda config: in_attention(config, softcap=5.0), "softcap 5.0"),
        ("llama", lambda config: in_attention(config, key_dim=7), "tokens of another width"),
        ("llama", lambda config: in_feed_forward(config, gated=False), "gated False"),
        ("llama", lambda config: in_attention(config, mask=Causal() & ~SlidingWindow(2)), "mask"),
        ("mixtral", lambda config: in_feed_forward(config, bias=True), "experts with biases or without a gate"),
        ("mixtral", lambda config: in_feed_forward(config, gated=False), "gated False"),
        ("phi3", lambda config: in_attention(config, qk_norm=True), "qk_norm over head"),
        ("gpt2", lambda config: in_attention(config, num_kv_heads=2), "num_kv_heads 2"),
        ("deepseek_v3", lambda config: in_blocks(config, dropout_p=0.1), "dropout_p 0.1 of a layer"),
        ("t5", without_a_table, "a table of biases in another layer than the first"),
        ("t5", lambda config: replace(config, encoder=replace(config.encoder, final_norm=False)), "a final norm"),
    ],
)
def test_parts_that_no_forward_pass_plays_are_refused(family, make, text):
    with pytest.raises(UnsupportedError, match=rf"has another form; got .*{text}"):
        predict_step(make(base(family)), Workload(batch=1, seq=3, attention="eager"))


def test_a_deepseek_without_a_shared_expert_is_played():
    config = read_config({"model_type": "deepseek_v3", **OTHER_SIZES["deepseek_v3"], "n_shared_experts": 0}, name="m")
    step = predict_step(config, Workload(batch=1, seq=3))
    assert step.parameter_bytes == 4 * count_parameters(config).total
