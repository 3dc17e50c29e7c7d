"""Right values for what other tools' users reported as wrong, each tried on paper.

The numbers behind "#" are those of the reports, in the repository that is named.
"""

from dataclasses import replace

import pytest

from headwise.config.attention import AttentionConfig
from headwise.config.huggingface import read_config
from headwise.config.model import FeedForwardConfig
from headwise.config.presets import preset
from headwise.cost.flops import attention_flops, decode_flops, forward_flops, train_flops
from headwise.cost.kv import kv_cache_bytes, kv_cache_bytes_per_token, kv_layers, score_matrix_bytes
from headwise.cost.layer_flops import feed_forward_flops
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.parameters import attention_parameters, count_parameters
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Workload
from headwise.masks.patterns import Causal, Full, SlidingWindow

GIB = 2**30
NO_MASK = Full()


def core_flops(
    num_heads: int, head_dim: int, *, batch: int, query_len: int, key_len: int, mask=NO_MASK
) -> tuple[int, int]:
    """Return dense and attended FLOPs of an attention without its projections."""
    config = AttentionConfig(embed_dim=1, num_heads=num_heads, head_dim=head_dim, mask=mask)
    count = attention_flops(config, batch=batch, query_len=query_len, key_len=key_len)
    projections = 2 * batch * 2 * num_heads * head_dim * (query_len + key_len)
    return count.dense - projections, count.attended - projections


# Counts of zero, of twice, of half


def test_attention_on_cpu_is_no_zero():
    """pytorch#195460."""
    assert core_flops(12, 64, batch=1, query_len=64, key_len=64)[0] == 12_582_912


def test_attention_is_counted_once():
    """pytorch#134804."""
    assert core_flops(5, 4, batch=2, query_len=9, key_len=9)[0] == 12_960


def test_masked_pairs_are_counted_as_4_d_each():
    """pytorch#134385: flex attention."""
    _, attended = core_flops(3, 8, batch=2, query_len=10, key_len=10, mask=SlidingWindow(4))
    assert attended == 4 * 2 * 3 * 8 * (1 + 2 + 3 + 7 * 4)


def test_both_products_of_an_attention_count():
    """torchtitan#4366: half of them were missing."""
    assert core_flops(1, 7, batch=1, query_len=5, key_len=3)[0] == 2 * (5 * 3 * 7) * 2


@pytest.mark.parametrize("num_heads", [4, 8])
def test_the_number_of_heads_changes_nothing_and_the_core_is_there(num_heads):
    """fvcore#153."""
    config = AttentionConfig(embed_dim=448, num_heads=num_heads)
    assert attention_flops(config, batch=1, query_len=300, key_len=300).macs.dense == 321_484_800


def test_a_bare_attention_module():
    """pytorch-OpCounter#197: neither operations nor parameters were found."""
    config = AttentionConfig(embed_dim=100, num_heads=1)
    assert attention_flops(config, batch=1, query_len=1000, key_len=1000).macs.dense == 240_000_000
    assert attention_parameters(config) == 40_400


def test_flops_are_not_macs():
    """fvcore#69, ptflops#16: one multiply-add is two operations."""
    count = feed_forward_flops(FeedForwardConfig(embed_dim=3, hidden_dim=5), tokens=7)
    assert count == 2 * (7 * 3 * 5 + 7 * 5 * 3)


def test_an_image_model():
    """torchinfo#226: 173.23 M multiply-adds for ViT-B/16; right 17.56 G, 16.85 G of them with weights."""
    count = forward_flops(preset("vit-b-16"), batch=1, seq=197)
    with_weights = 12 * 197 * (4 * 768**2 + 2 * 768 * 3072) + 196 * 768 * 768 + 768 * 1000
    assert count.macs.dense == with_weights + 12 * 2 * 197**2 * 768 == 17_563_828_224
    assert round(with_weights / 1e9, 2) == 16.85


def test_doubling_a_long_text_more_than_doubles_its_operations():
    """calflops#46: the count was linear in the length."""
    config = preset("llama-2-7b")
    short, long = (forward_flops(config, batch=1, seq=seq).dense for seq in (8192, 16384))
    products = 6_738_415_616 - 32000 * 4096 - 65 * 4096  # every weight but the token table and the norms
    assert short == 2 * 8192 * products + 4 * 32 * 8192**2 * 4096
    assert long / short > 2.3


# Causal masks


def test_causal_attention_halves_the_core_and_nothing_else():
    """maxtext#1972: attention of Llama-2-7B at 8192, 422.21 TFLOP, right 211.11; in all 1721, right 1510 (training)."""
    config, batch = preset("llama-2-7b"), 4
    train = train_flops(config, batch=batch, seq=8192)
    difference = (train.dense - train.attended) / 1e12
    assert round(3 * 4 * 32 * batch * 8192**2 * 4096 / 1e12, 2) == 422.21
    assert difference == pytest.approx(422.21 / 2, rel=2e-4)
    assert round(train.dense / 1e12) == 1721
    assert round(train.attended / 1e12) == 1510


def test_queries_stand_at_the_end_of_the_keys():
    """xformers#1402: 1920 for all pairs. (Its 1536 halves a square of 4 x 4; the triangle with its diagonal has 10.)"""
    config = AttentionConfig(embed_dim=1, num_heads=1, head_dim=8, v_head_dim=16, mask=Causal(), projection_bias=False)
    count = attention_flops(config, batch=1, query_len=4, key_len=10)
    projections = 2 * (4 * (8 + 16) + 10 * (8 + 16))
    assert count.dense - projections == 1920
    assert count.attended - projections == 1632 == 2 * (8 + 16) * (7 + 8 + 9 + 10)


def test_backward_of_a_fused_kernel_is_two_and_a_half_forwards():
    """flash-attention#594: and twice where the scores were kept."""
    config = replace(preset("gpt2"), head=None)
    base = {"batch": 1, "seq": 256, "dropout": False, "precision": "bf16"}
    eager, fused = (step_flops(config, Workload(**base, attention=attention)) for attention in ("eager", "sdpa"))
    core = 12 * core_flops(12, 64, batch=1, query_len=256, key_len=256)[0]
    assert eager.backward.dense == 2 * eager.forward.dense
    assert fused.backward.dense - eager.backward.dense == core // 2


# Experts


def test_only_active_experts_compute():
    """maxtext#678: Mixtral, all eight experts counted as computing."""
    config = preset("mixtral-8x7b")
    everyone = replace(config.blocks[0].feed_forward, num_active_experts=8)
    active = feed_forward_flops(config.blocks[0].feed_forward, tokens=1)
    router = 2 * 4096 * 8
    assert (feed_forward_flops(everyone, tokens=1) - router) == 4 * (active - router)


def test_all_experts_are_held():
    """vllm-fit#27, llmfit#230: 13 B active of Mixtral's 46.7 B."""
    count = count_parameters(preset("mixtral-8x7b"))
    assert count.feed_forward == 32 * (8 * 3 * 4096 * 14336 + 8 * 4096)
    assert count.total == 46_702_792_704
    active = count.total - 32 * 6 * 3 * 4096 * 14336
    assert round(active / 1e9, 1) == 12.9


# Heads that are not width / heads


@pytest.mark.parametrize(
    ("name", "head_dim", "by_division"),
    [("qwen3-4b", 128, 80), ("mistral-nemo-12b", 128, 160), ("gpt-oss-20b", 64, 45), ("gemma-2b", 256, 256)],
)
def test_the_size_of_a_head_is_its_own(name, head_dim, by_division):
    """Model-Optimizer#2482, torchtitan#1920, LMCache#688."""
    attention = preset(name).blocks[0].attention
    assert (attention.head_dim, attention.embed_dim // attention.num_heads) == (head_dim, by_division)


def test_mistral_small_and_gemma_3_12b_have_heads_of_their_own_size():
    """Model-Optimizer#2482."""
    mistral = {"model_type": "mistral", "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128}
    gemma = {"model_type": "gemma3_text", "hidden_size": 3840, "num_attention_heads": 16, "head_dim": 256}
    assert [read_config(c, name="m").blocks[0].attention.head_dim for c in (mistral, gemma)] == [128, 256]


def test_a_head_dim_of_null_is_the_familys_own():
    """hf-mem#60: a TypeError."""
    config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": None}
    assert read_config(config, name="m").blocks[0].attention.head_dim == 128


# Parameters


def test_the_untied_head_is_counted():
    """accelerate#3379: Llama-3-8B without its head, 7,504,924,672."""
    config = preset("llama-3-8b")
    assert count_parameters(config).total == 8_030_261_248
    assert count_parameters(replace(config, head=None)).total == 7_504_924_672


def test_llama_3_70b_takes_141_gb():
    """accelerate#3379: 64.73 GB in float16."""
    assert 2 * count_parameters(preset("llama-3-70b")).total == 141_107_412_992


def test_tied_weights_count_once_and_their_products_still():
    """torchinfo#322, torchtitan#3225."""
    tied = preset("gpt2")
    untied = replace(tied, head=replace(tied.head, tied=False))
    assert count_parameters(untied).total - count_parameters(tied).total == 50257 * 768
    assert forward_flops(tied, batch=1, seq=3) == forward_flops(untied, batch=1, seq=3)


def test_gpt2_small_has_one_position_table_and_one_token_table():
    """EleutherAI's cookbook: 162.99 M."""
    assert count_parameters(preset("gpt2")).total == 124_439_808


# Key/value caches


@pytest.mark.parametrize(
    ("name", "seq", "gib"),
    [
        ("llama-2-7b", 4096, 2.0),  # cookbook: 1.00, no factor 2 for keys and values
        ("llama-3-8b", 8192, 1.0),  # cookbook: 2.00, no grouped heads; gpu_poor: 8
        ("deepseek-v3", 131072, 8.578125),  # hf-mem: 213.5, no latent attention
    ],
)
def test_caches(name, seq, gib):
    assert kv_cache_bytes(preset(name), batch=1, seq=seq, dtype="bfloat16") == gib * GIB


def test_one_token_of_gpt_oss_120b():
    """hf-mem#60: 36,864 bytes, half of it."""
    assert kv_cache_bytes_per_token(preset("gpt-oss-120b")) == 36 * 2 * 8 * 64 * 2 == 73_728


def test_gpt_oss_20b_has_two_right_answers():
    """hf-mem#61, #70: what is kept, and what an engine reserves that gives every layer pages of the whole length."""
    layers = kv_layers(preset("gpt-oss-20b"), batch=32, seq=8192)
    assert round(sum(layer.bytes for layer in layers) / GIB, 2) == 6.09
    assert sum(layer.unified_bytes for layer in layers) == 12 * GIB


def test_linear_layers_keep_no_token():
    """hf-mem: 3.0 GiB for 36 linear and 12 full layers at 32k; right 0.75 and a state of fixed size."""
    layers = kv_layers(preset("qwen3-next-80b"), batch=1, seq=32768)
    assert sum(layer.tokens * layer.bytes_per_token for layer in layers) == 0.75 * GIB
    states = sum(layer.state_bytes for layer in layers)
    assert states == sum(layer.state_bytes for layer in kv_layers(preset("qwen3-next-80b"), batch=1, seq=1))


def test_a_window_without_a_list_of_layer_types_caps_the_cache():
    """hf-mem: 4.0 GiB for Mistral-7B at 32k, logically 0.5."""
    assert kv_cache_bytes(preset("mistral-7b"), batch=1, seq=32768) == 0.5 * GIB


def test_latent_attention_caches_the_rotary_key_too_and_once():
    """LMCache#694: 2 x L x s x 512."""
    assert kv_cache_bytes_per_token(preset("deepseek-v3")) == 61 * (512 + 64) * 2 == 70_272


def test_decoding_reads_key_value_heads_not_query_heads():
    """LLM-Viewer#12: four times the cache of Llama-3-8B."""
    config = preset("llama-3-8b")
    assert kv_cache_bytes_per_token(config) == 32 * 8 * 2 * 128 * 2
    core = decode_flops(config, batch=1, seq=2000).dense - decode_flops(config, batch=1, seq=1000).dense
    # 4 FLOPs for each number of a query head, 2 bytes for each number of keys and values: H / K operations a byte
    assert core / (1000 * kv_cache_bytes_per_token(config)) == 32 / 8


def test_attention_of_latent_layers_is_242_operations_a_byte():
    """DeepSeek's own figure, once the expansion is absorbed: all heads read one latent vector as key and as value."""
    config = preset("deepseek-v3")
    layer = config.blocks[0].attention
    widths = {"embed_dim": 7168, "head_dim": layer.cached_dim, "v_head_dim": layer.kv_lora_rank}
    absorbed = AttentionConfig(num_heads=128, num_kv_heads=1, projection_bias=False, **widths)
    counts = [attention_flops(absorbed, batch=1, query_len=1, key_len=keys).dense for keys in (1000, 2000)]
    projected = 2 * 1000 * 7168 * (layer.cached_dim + layer.kv_lora_rank)
    core = counts[1] - counts[0] - projected
    assert round(core / (1000 * kv_cache_bytes_per_token(config) / config.num_layers)) == 242


# Claims that articles make


def test_a_layer_of_width_768_has_2_36_million_parameters():
    assert attention_parameters(AttentionConfig(embed_dim=768, num_heads=12, projection_bias=False)) == 2_359_296
    assert attention_parameters(AttentionConfig(embed_dim=768, num_heads=12)) == 2_362_368


def test_the_score_matrix_of_16_heads_takes_2_gib_at_1024_tokens_and_8_at_2048():
    for seq, gib in ((1024, 2), (2048, 8)):
        scores = {"batch": 32, "query_len": seq, "key_len": seq, "dtype": "float32"}
        assert score_matrix_bytes(num_heads=16, **scores) == gib * GIB
    assert score_matrix_bytes(batch=32, num_heads=12, query_len=2048, key_len=2048, dtype="float32") == 6 * GIB


@pytest.mark.parametrize("num_heads", [1, 8])
def test_heads_do_not_cost_14_percent_the_output_projection_does(num_heads):
    config = AttentionConfig(embed_dim=512, num_heads=num_heads, projection_bias=False)
    everything = attention_flops(config, batch=32, query_len=1024, key_len=1024).macs.dense
    assert everything == 68_719_476_736
    assert everything - 32 * 1024 * 512**2 == 60_129_542_144
    assert round(68_719_476_736 / 60_129_542_144 - 1, 2) == 0.14
    assert (attention_parameters(config), attention_parameters(config) - 512**2) == (1_048_576, 786_432)


def test_smaller_heads_do_not_make_attention_d_squared_over_h():
    def macs(num_heads: int, head_dim: int) -> int:
        config = AttentionConfig(embed_dim=512, num_heads=num_heads, head_dim=head_dim, projection_bias=False)
        return attention_flops(config, batch=1, query_len=100, key_len=100).macs.dense

    assert macs(8, 64) == macs(1, 512) == 4 * 100 * 512**2 + 2 * 100**2 * 512
    assert macs(8, 512) == 8 * macs(1, 512)


def test_full_size_heads_are_h_times_the_width_before_the_output_projection():
    full_size = AttentionConfig(embed_dim=512, num_heads=8, head_dim=512, projection_bias=False)
    assert attention_parameters(full_size) == 4 * 512 * (8 * 512)


def test_one_attention_of_bert_large_keeps_over_5_gib_of_which_scores_are_all_but_a_seventh():
    config = preset("bert-large")
    one_layer = replace(config, blocks=config.blocks[:1], position_table_size=1024)
    ledger = predict_ledger(one_layer, Workload(batch=32, seq=1024, attention="eager"))
    kept = {e.name: e.bytes for e in ledger.entries if e.owner == "layer 0 attention" and e.kind == "saved"}
    scores = {name: size for name, size in kept.items() if name.startswith("attention weights")}
    assert scores == {
        "attention weights": 2 * GIB,
        "attention weights after dropout": 2 * GIB,
        "attention weights dropout mask": GIB // 2,  # a byte a number
    }
    # q, k, v, what the heads give, and the norm's input and output, in float32; a mask in bytes; two numbers a token
    width = 32 * 1024 * 1024
    assert sum(kept.values()) == 4.5 * GIB + 6 * 4 * width + width + 2 * 4 * 32 * 1024
    assert 6 < sum(kept.values()) / (sum(kept.values()) - 4.5 * GIB) < 7


def test_fused_attention_brings_bert_at_2048_in_at_half_the_batch_or_with_checkpoints():
    """31.7 GiB is what a V100 of 32 GB reports."""
    config = replace(preset("bert-base"), position_table_size=2048, max_positions=2048)

    def peak_gib(**settings):
        workload = Workload(**{"batch": 32, "seq": 2048, "attention": "sdpa", "compute_capability": (7, 0)} | settings)
        return round(predict_step(config, workload).peak_bytes / GIB, 1)

    assert (peak_gib(attention="eager"), peak_gib()) == (204.8, 39.5)
    assert (peak_gib(batch=16), peak_gib(checkpoint="full")) == (20.4, 7.5)


def test_mixed_precision_saves_a_fifth_and_bfloat16_weights_nearly_a_half():
    fp32, mixed, bf16 = (
        predict_step(preset("bert-base"), Workload(batch=32, seq=128, attention="eager", precision=precision))
        for precision in ("fp32", "amp-bf16", "bf16")
    )
    assert mixed.parameter_bytes == fp32.parameter_bytes == 2 * bf16.parameter_bytes
    assert round(mixed.peak_bytes / fp32.peak_bytes, 2) == 0.81
    assert round(bf16.peak_bytes / fp32.peak_bytes, 2) == 0.52
