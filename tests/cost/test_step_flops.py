"""What one optimizer step really multiplies, against torch's own counter on real steps."""

from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS, preset
from headwise.cost.adapters import adapter_shapes, require_targets
from headwise.cost.flops import forward_flops, top_flops, train_flops
from headwise.cost.memory import predict_ledger
from headwise.cost.running.adapters import add_adapters
from headwise.cost.step.models import FAMILIES
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError
from headwise.masks.patterns import SlidingWindow

LLAMA = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "num_hidden_layers": 3,
    "intermediate_size": 13,
    "pad_token_id": 0,
}
BATCH, SEQ = 2, 7


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, attn_implementation="eager"))


def workload(**changes) -> Workload:
    return Workload(**{"batch": BATCH, "seq": SEQ, "attention": "eager", "device": "cpu", **changes})


def counted(model: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.full((BATCH, SEQ), 3), use_cache=False).logits.sum().backward()
    return counter.get_total_flops()


CONFIG = read_config(LLAMA, name="m")
FORWARD = forward_flops(CONFIG, batch=BATCH, seq=SEQ).dense
HEAD = top_flops(CONFIG, batch=BATCH, seq=SEQ)
CORE = 3 * 2 * (BATCH * 3 * SEQ * SEQ) * (6 + 6)  # layers x FLOPs a multiply-add x pairs x widths
LAST_PRODUCTS = 3 * 2 * BATCH * SEQ * 13 * 12  # each layer's down projection


def test_without_recomputation_a_step_is_three_forwards():
    step = step_flops(CONFIG, workload())
    assert step.hardware == step.model == train_flops(CONFIG, batch=BATCH, seq=SEQ)
    assert step.hardware.dense == counted(llama()) == 3 * FORWARD
    assert (step.forward.dense, step.backward.dense, step.recomputed.dense) == (FORWARD, 2 * FORWARD, 0)


def checkpointed(forward, *, is_reentrant: bool):
    """Wrap a layer's forward so that backward runs it again."""

    def run(tokens, **settings):
        return checkpoint(lambda x: forward(x, **settings), tokens, use_reentrant=is_reentrant)

    return run


@pytest.mark.parametrize(("is_reentrant", "left_out"), [(True, 0), (False, LAST_PRODUCTS)])
def test_full_checkpointing_runs_every_layer_again_but_for_the_last_product_where_torch_stops_early(
    is_reentrant, left_out
):
    model = llama()
    for layer in model.model.layers:
        layer.forward = checkpointed(layer.forward, is_reentrant=is_reentrant)
    step = step_flops(CONFIG, workload(checkpoint="full"))
    assert step.recomputed.dense == FORWARD - HEAD
    assert step.hardware.dense == counted(model) + left_out
    assert step.model.dense == 3 * FORWARD  # the mathematics has not changed


def test_selective_checkpointing_runs_the_attention_core_again():
    step = step_flops(CONFIG, workload(checkpoint="selective"))
    assert step.recomputed.dense == CORE
    assert step.recomputed.attended == CORE * (SEQ + 1) // (2 * SEQ)


def test_a_fused_kernel_multiplies_queries_with_keys_again():
    shape, grouped = (BATCH, 3, SEQ, 6), (BATCH, 3, SEQ, 6)
    forward = sdpa_flop_count(shape, grouped, grouped)
    backward = sdpa_backward_flop_count(shape, shape, grouped, grouped)
    step = step_flops(CONFIG, workload(attention="sdpa"))
    assert 3 * forward == CORE
    assert step.hardware.dense - step.model.dense == 3 * (backward - 2 * forward) == CORE // 2
    assert step.hardware.attended > step.model.attended


def test_where_key_and_value_heads_differ_the_scores_alone_are_computed_again():
    config = replace(preset("deepseek-v3"), blocks=preset("deepseek-v3").blocks[:1])
    eager, fused = (
        step_flops(config, Workload(batch=1, seq=64, attention=attention, precision="bf16", compute_capability=(9, 0)))
        for attention in ("eager", "sdpa")
    )
    assert fused.hardware.dense - eager.hardware.dense == 2 * 128 * 64 * 64 * 192


def test_selective_recomputation_beside_a_fused_kernel_saves_nothing_and_still_costs():
    """Megatron-LM#464: it should not be needed with flash attention."""
    fused = step_flops(CONFIG, workload(attention="sdpa"))
    both = step_flops(CONFIG, workload(attention="sdpa", checkpoint="selective"))
    assert both.hardware.dense - fused.hardware.dense == CORE


QKV = Lora(rank=2, targets=("q_proj", "k_proj", "v_proj"))


def again(config, **changes):
    """What sdpa's backward multiplies beyond eager attention's."""
    work = {"batch": 1, "seq": 128, "precision": "bf16", **changes}
    counts = [step_flops(config, Workload(attention=attention, **work)) for attention in ("eager", "sdpa")]
    return counts[1].hardware.dense - counts[0].hardware.dense


@pytest.mark.parametrize("name", ["gemma-2-9b", "gpt-oss-20b"])
def test_layers_with_a_term_on_their_scores_are_reckoned_eager(name):
    assert again(preset(name)) == 0


@pytest.mark.parametrize(
    ("changes", "num_fused"),
    [
        ({"device": "cuda"}, 6 + 6 + 6),  # the memory-efficient kernel learns biases: encoder, decoder and between
        ({"device": "cpu", "dropout": False}, 6),  # the CPU's does not: its "math" serves all but cross-attention
        ({"device": "cpu", "dropout": False, "lora": QKV}, 6 + 6 + 6),  # frozen, a bias is a mask
    ],
)
def test_t5s_kernels_are_those_of_a_call_with_a_bias(changes, num_fused):
    scores = 2 * 8 * 128 * 128 * 64
    fused = again(preset("t5-small"), **changes)
    assert fused == num_fused * scores


def test_our_own_modules_pack_the_queries_of_a_group_and_their_kernel_is_that_of_the_packed_call():
    """With a mask tensor a grouped call gets the "math" kernel; packed, one head with more queries, a fused one."""
    attention = AttentionConfig(embed_dim=32, num_heads=4, num_kv_heads=1, mask=SlidingWindow(5))
    grouped = BlockConfig(attention=attention, feed_forward=FeedForwardConfig(embed_dim=32, hidden_dim=8))
    config = replace(preset("mistral-7b"), model_type="headwise", embed_dim=32, blocks=(grouped,))
    assert again(config, device="cpu", precision="fp32") == 2 * 4 * 128 * 128 * 8


def test_accumulation_repeats_all_but_the_optimizer():
    one, three = (step_flops(CONFIG, workload(accumulation=times, checkpoint="full")) for times in (1, 3))
    for name in ("forward", "backward", "recomputed", "model", "hardware"):
        assert getattr(three, name).dense == 3 * getattr(one, name).dense


def test_the_chunked_loss_computes_the_scores_of_the_vocabulary_again():
    plain, chunked = (step_flops(CONFIG, workload(loss=loss)) for loss in ("cross_entropy", "chunked_cross_entropy"))
    assert chunked.recomputed.dense == HEAD
    assert chunked.hardware.dense - plain.hardware.dense == HEAD


def test_a_prefill_is_a_forward_pass():
    step = step_flops(CONFIG, workload(phase="prefill", checkpoint="full"))
    assert step.forward == step.model == step.hardware == forward_flops(CONFIG, batch=BATCH, seq=SEQ)
    assert (step.backward.dense, step.recomputed.dense) == (0, 0)


class Adapted(nn.Module):
    """A frozen projection with two small ones beside it."""

    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


PATHS = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "out_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
TARGETS = [("q_proj", "v_proj"), ("down_proj",), ("out_proj",), ("k_proj",), ("v_proj", "up_proj"), tuple(PATHS)]


def adapted_llama(targets):
    model = llama().requires_grad_(False)
    for layer in model.model.layers:
        for target in targets:
            layer.set_submodule(PATHS[target], Adapted(layer.get_submodule(PATHS[target]), 5))
    return model


@pytest.mark.parametrize("targets", TARGETS)
def test_nothing_flows_back_beyond_the_first_adapter(targets):
    step = step_flops(CONFIG, workload(lora=Lora(rank=5, targets=targets)))
    assert step.hardware.dense == counted(adapted_llama(targets)) < step.model.dense
    assert step.hardware.attended < step.model.attended


@pytest.mark.parametrize("targets", TARGETS)
def test_where_embeddings_need_a_gradient_frozen_weights_need_one_product_and_adapters_two(targets):
    """As `enable_input_require_grads` makes them beside checkpoints: the first layer is like all others."""
    model = adapted_llama(targets)
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    step = step_flops(CONFIG, workload(lora=Lora(rank=5, targets=targets), checkpoint="full"))
    assert step.hardware.dense - step.recomputed.dense == step.model.dense == counted(model)
    assert step.recomputed.dense == step.forward.dense - HEAD


def test_what_adapters_add_to_a_forward_pass_is_their_own_products():
    step = step_flops(CONFIG, workload(lora=Lora(rank=5, targets=("q_proj", "down_proj"))))
    assert step.forward.dense == FORWARD + 3 * 2 * BATCH * SEQ * 5 * ((12 + 18) + (13 + 12))


def test_selective_checkpoints_run_no_attention_again_through_which_nothing_flows_back():
    lora = Lora(rank=5, targets=("out_proj",))
    step = step_flops(CONFIG, workload(lora=lora, checkpoint="selective"))
    assert step.recomputed.dense == 2 * CORE // 3


T5_SIZES = {"d_model": 12, "d_kv": 6, "d_ff": 13, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2}


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("down_proj",), ("out_proj",), ("k_proj", "up_proj")])
def test_an_encoder_decoders_adapters_are_counted_in_cross_attention_too(targets):
    content = {"model_type": "t5", "vocab_size": 11, **T5_SIZES}
    config = read_config(content, name="t5")
    settings = transformers.T5Config(**content, decoder_start_token_id=0, use_cache=False)
    model = transformers.T5ForConditionalGeneration._from_config(settings, attn_implementation="eager")
    lora = Lora(rank=3, targets=targets)
    add_adapters(model, lora)
    with FlopCounterMode(display=False) as counter:
        ids = torch.full((BATCH, SEQ), 3)
        model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits.sum().backward()
    assert step_flops(config, workload(lora=lora)).hardware.dense == counter.get_total_flops()


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "headwise"])
def test_the_ledger_and_the_flops_know_the_same_adapters(family):
    preset_name = next((name for name, one in PRESETS.items() if one.config["model_type"] == family), None)
    content = {"model_type": family} if preset_name is None else dict(PRESETS[preset_name].config)
    config = read_config(content, name=family)
    blocks = (*(config.encoder.blocks if config.encoder else ()), *config.blocks)
    for targets in (("q_proj",), ("out_proj",), ("down_proj",), ("v_proj", "up_proj")):
        lora = Lora(rank=3, targets=targets)
        work = Workload(batch=1, seq=config.max_positions if config.patches else 3, attention="eager", lora=lora)
        try:
            require_targets(config, lora)
        except ConfigError:
            assert any(block.feed_forward.num_experts > 1 for block in blocks)  # stacked; or latent queries
            continue
        ledger = predict_ledger(config, work)
        entries = [entry for entry in ledger.entries if entry.kind == "parameter" and " adapter " in entry.name]
        numbers = sum(entry.bytes for entry in entries) // 4
        shapes = [shape for block in blocks for shape in adapter_shapes(block, lora, model_type=family)]
        assert numbers == 3 * sum(inputs + outputs for inputs, outputs in shapes)


def test_projections_that_are_one_matrix_have_one_adapter():
    lora = Lora(rank=5, targets=("q_proj", "v_proj", "up_proj"))
    gpt2 = preset("gpt2")
    assert adapter_shapes(gpt2.blocks[0], lora, model_type="gpt2") == ((768, 3 * 768), (768, 3072))
    assert adapter_shapes(gpt2.blocks[0], lora, model_type="opt") == ((768, 768), (768, 768), (768, 3072))
    phi3 = read_config({"model_type": "phi3"}, name="phi3").blocks[0]
    assert adapter_shapes(phi3, lora, model_type="phi3") == ((3072, 3 * 3072), (3072, 2 * 8192))


@pytest.mark.parametrize("count", [step_flops, predict_ledger])
@pytest.mark.parametrize(
    ("name", "targets"), [("deepseek-v3", ("k_proj",)), ("gpt2", ("q_proj", "gate_proj")), ("mistral-7b", ())]
)
def test_both_paths_refuse_the_same_targets(count, name, targets):
    with pytest.raises(ConfigError, match=r"targets of lora must be projections of the model: .*down_proj"):
        count(preset(name), Workload(batch=1, seq=8, lora=Lora(rank=2, targets=targets)))


@pytest.mark.parametrize("count", [step_flops, predict_ledger])
def test_both_paths_refuse_a_loss_of_scores_without_a_head(count):
    with pytest.raises(ConfigError, match="loss 'chunked_cross_entropy' needs a language-model head"):
        count(replace(preset("gpt2"), head=None), Workload(batch=1, seq=8, loss="chunked_cross_entropy"))


def test_the_chunked_loss_leaves_berts_transform_outside_of_its_pieces():
    config = read_config({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, name="bert")
    step = step_flops(config, Workload(batch=2, seq=8, loss="chunked_cross_entropy"))
    assert step.recomputed.dense == 2 * (2 * 8) * 768 * 30522


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
def test_every_presets_counts_are_in_order(name, checkpoint):
    config = preset(name)
    seq = config.max_positions if config.patches else 64
    step = step_flops(config, Workload(batch=2, seq=seq, precision="bf16", checkpoint=checkpoint))
    for kind in ("dense", "attended"):
        forward, model, hardware = (getattr(getattr(step, part), kind) for part in ("forward", "model", "hardware"))
        assert model == 3 * forward
        parts = [getattr(getattr(step, part), kind) for part in ("forward", "backward", "recomputed")]
        assert hardware == sum(parts)
    assert step.hardware.attended <= step.hardware.dense
