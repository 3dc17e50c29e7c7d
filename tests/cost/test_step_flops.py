"""What one optimizer step really multiplies, against torch's own counter on real steps."""

from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS, preset
from headwise.cost.adapters import adapter_shapes
from headwise.cost.flops import forward_flops, top_flops, train_flops
from headwise.cost.step_flops import step_flops
from headwise.cost.workload import Lora, Workload
from headwise.errors import ConfigError

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


@pytest.mark.parametrize("family_config", ["gemma-2-9b", "gpt-oss-20b", "t5-small"])
def test_layers_with_a_term_on_their_scores_are_reckoned_eager(family_config):
    config = preset(family_config)
    counts = [
        step_flops(config, Workload(batch=1, seq=128, precision="bf16", attention=attention))
        for attention in ("eager", "sdpa")
    ]
    cross = sum(block.cross_attention is not None for block in config.blocks)
    again = cross * 2 * 8 * 128 * 128 * 64  # T5's cross-attention has no bias
    assert counts[1].hardware.dense - counts[0].hardware.dense == again


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


def test_frozen_weights_need_one_product_in_backward_and_their_adapters_two_of_their_own():
    model = llama().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, 5)
        layer.mlp.down_proj = Adapted(layer.mlp.down_proj, 5)
    # as `enable_input_require_grads` does, so that the first layer is like all others
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    step = step_flops(CONFIG, workload(lora=Lora(rank=5, targets=("q_proj", "down_proj"))))
    adapters = 3 * 2 * BATCH * SEQ * 5 * ((12 + 18) + (13 + 12))
    assert step.forward.dense == FORWARD + adapters
    assert step.hardware.dense == step.model.dense == counted(model)


def test_projections_that_are_one_matrix_have_one_adapter():
    lora = Lora(rank=5, targets=("q_proj", "v_proj", "up_proj"))
    gpt2 = preset("gpt2")
    assert adapter_shapes(gpt2.blocks[0], lora, model_type="gpt2") == ((768, 3 * 768), (768, 3072))
    assert adapter_shapes(gpt2.blocks[0], lora, model_type="opt") == ((768, 768), (768, 768), (768, 3072))
    phi3 = read_config({"model_type": "phi3"}, name="phi3").blocks[0]
    assert adapter_shapes(phi3, lora, model_type="phi3") == ((3072, 3 * 3072), (3072, 2 * 8192))


def test_a_target_that_a_kind_of_layer_has_not_is_refused():
    with pytest.raises(ConfigError, match=r"must have a projection that is a target of lora; deepseek-v3.*k_proj"):
        step_flops(preset("deepseek-v3"), Workload(batch=1, seq=8, lora=Lora(rank=2, targets=("k_proj",))))


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
