"""A module is made ready for a workload: precision, dropout, attention, checkpoints, adapters, optimizer, loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.config.attention import AttentionConfig
from headwise.cost.running.adapters import SCALE, AdaptedProjection, targets_of
from headwise.cost.running.flop_counter import count_flops
from headwise.cost.running.prepare import autocast, call, make_loss, make_optimizers, prepare_inputs, prepare_module
from headwise.cost.workload import LORA_TARGETS, Lora, Workload
from headwise.errors import ConfigError, ModelError, UnsupportedError
from headwise.nn.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")

VOCAB, EMBED, HIDDEN, LAYERS, HEADS, BATCH, SEQ = 37, 24, 20, 3, 4, 2, 11


def workload(**options):
    return Workload(batch=BATCH, seq=SEQ, device="cpu", **options)


def llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=EMBED,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        pad_token_id=0,
        **options,
    )
    return transformers.LlamaForCausalLM(config)


def bert(class_name="BertForMaskedLM"):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=EMBED,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=SEQ,
    )
    return getattr(transformers, class_name)(config)


def tokens():
    return {"input_ids": torch.arange(BATCH * SEQ).view(BATCH, SEQ) % VOCAB}


def gradients(module, asked, inputs):
    """Run forward, loss and backward as prepared; return the loss and all gradients."""
    prepare_module(module, asked)
    torch.manual_seed(1)
    loss = make_loss(module, inputs, asked)(call(module, inputs, asked))
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in module.named_parameters() if one.grad is not None}


# Precision


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_take_the_dtype_and_what_no_checkpoint_holds_keeps_its_own(precision):
    model = llama()
    prepare_module(model, workload(precision=precision))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32  # angles stay exact
    norm = nn.BatchNorm1d(3)
    prepare_module(norm, workload(precision=precision))
    assert norm.running_mean.dtype == dtype


def test_floating_point_inputs_take_the_weights_dtype_and_tokens_do_not():
    asked = workload(precision="bf16")
    named = prepare_inputs({"pixels": torch.ones(2, 3), "ids": torch.ones(2, 3, dtype=torch.int64)}, asked)
    assert (named["pixels"].dtype, named["ids"].dtype) == (torch.bfloat16, torch.int64)
    assert prepare_inputs((torch.ones(2),), asked)[0].dtype == torch.bfloat16
    assert prepare_inputs((torch.ones(2),), workload(precision="amp-bf16"))[0].dtype == torch.float32


def test_autocast_is_on_for_amp_alone():
    linear, x = nn.Linear(3, 5), torch.ones(2, 3)
    for precision, dtype in (("fp32", torch.float32), ("amp-bf16", torch.bfloat16), ("amp-fp16", torch.float16)):
        with autocast(workload(precision=precision)):
            assert linear(x).dtype == dtype


# Dropout, attention, cache, mode


def test_without_dropout_nothing_is_random_in_train_mode():
    model = llama(attention_dropout=0.5)
    prepare_module(model, workload(dropout=False))
    assert model.training
    outputs = [model(**tokens()).logits for _ in range(2)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.5, batch_first=True)
    prepare_module(layer, workload(dropout=False))
    x = torch.ones(1, 3, 8)
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


def test_with_dropout_a_model_in_train_mode_is_random():
    model = llama(attention_dropout=0.5)
    prepare_module(model, workload())
    assert not torch.equal(model(**tokens()).logits, model(**tokens()).logits)


def test_a_prefill_runs_in_eval_mode_and_without_a_cache():
    model = llama()
    prepare_module(model, workload(phase="prefill"))
    assert not model.training
    assert model(**tokens()).past_key_values is None


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_hugging_face_model_takes_the_attention_that_is_asked_for(implementation):
    model = llama()
    prepare_module(model, workload(attention=implementation))
    assert model.config._attn_implementation == implementation


# Checkpoints


@pytest.mark.parametrize("make", [llama, bert])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpoint", ["selective", "full"])
def test_a_checkpoint_changes_no_loss_and_no_gradient_but_computes_more(make, implementation, checkpoint):
    plain, again = (workload(attention=implementation, checkpoint=kind) for kind in ("none", checkpoint))
    expected_loss, expected = gradients(make(), plain, tokens())
    loss, found = gradients(make(), again, tokens())
    torch.testing.assert_close(loss, expected_loss, rtol=0, atol=0)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0)
    more = [count_flops(lambda asked=asked: gradients(make(), asked, tokens())).dense for asked in (plain, again)]
    assert more[1] > more[0]


def test_selective_checkpointing_computes_the_scores_again_and_nothing_else():
    """A checkpoint stops as soon as all that was dropped is there: scores (for the weights), but not the output."""
    asked = [workload(attention="eager", checkpoint=kind) for kind in ("none", "selective")]
    flops = [count_flops(lambda one=one: gradients(llama(), one, tokens())).dense for one in asked]
    assert flops[1] - flops[0] == LAYERS * 2 * BATCH * HEADS * SEQ * SEQ * (EMBED // HEADS)


def test_layers_of_any_modules_list_are_checkpointed():
    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    tower = Tower()
    prepare_module(tower, workload(checkpoint="full"))
    x = torch.ones(2, 5, requires_grad=True)
    forward = 3 * 2 * 2 * 5 * 5
    assert count_flops(lambda: tower(x).sum().backward()).dense == 4 * forward  # forward, again, and twice in backward


def test_lists_inside_a_checkpointed_layer_are_left_alone():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))

        def forward(self, x):
            return self.parts[1](torch.tanh(self.parts[0](x)))

    torch.manual_seed(0)
    tower = nn.ModuleList(Layer() for _ in range(3))
    prepare_module(tower, workload(checkpoint="full"))
    wrapped = [name for name, part in tower.named_modules() if "forward" in vars(part)]
    assert wrapped == ["0", "1", "2"]


def test_a_layer_that_stands_in_several_places_is_checkpointed_once():
    tower = nn.ModuleList(3 * [nn.Tanh()])
    prepare_module(tower, workload(checkpoint="full"))
    assert tower[0].forward.args[0].__func__ is nn.Tanh.forward


def test_a_module_without_layers_to_checkpoint_is_refused():
    with pytest.raises(UnsupportedError, match="needs a ModuleList of equal layers"):
        prepare_module(nn.Linear(3, 5), workload(checkpoint="full"))
    with pytest.raises(
        UnsupportedError,
        match=r"selective checkpointing needs a Hugging Face.*; got Linear",
    ):
        prepare_module(nn.Linear(3, 5), workload(checkpoint="selective"))


# Adapters


@pytest.mark.parametrize("make", [llama, bert])
def test_adapters_are_trained_alone_and_start_as_nothing(make):
    before = make().eval()(**tokens()).logits
    model = make()
    prepare_module(model, workload(lora=Lora(rank=5, targets=("q_proj", "v_proj", "down_proj")), phase="prefill"))
    torch.testing.assert_close(model(**tokens()).logits, before, rtol=0, atol=0)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert len(trained) == LAYERS * 3 * 2
    assert all(name.endswith(("A.weight", "B.weight")) for name in trained)


def test_an_adapter_adds_its_two_products():
    torch.manual_seed(0)
    projection = nn.Linear(3, 7)
    adapted = AdaptedProjection(projection, rank=2)
    nn.init.normal_(adapted.B.weight)
    x = torch.randn(5, 3)
    expected = projection(x) + SCALE * x @ (adapted.B.weight @ adapted.A.weight).T
    torch.testing.assert_close(adapted(x), expected)
    assert (adapted.A.weight.shape, adapted.B.weight.shape) == ((2, 3), (7, 2))


def test_a_fused_projection_is_adapted_where_one_of_its_parts_is_a_target():
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=EMBED, n_layer=1, n_head=HEADS, n_positions=SEQ)
    model = transformers.GPT2LMHeadModel(config)
    prepare_module(model, workload(lora=Lora(rank=5, targets=("k_proj",))))
    adapter = model.transformer.h[0].attn.c_attn
    assert (adapter.A.weight.shape, adapter.B.weight.shape) == ((5, EMBED), (3 * EMBED, 5))
    call(model, tokens(), workload())


@pytest.mark.parametrize(
    ("path", "targets"),
    [
        ("model.layers.0.self_attn.q_proj", ("q_proj",)),
        ("bert.encoder.layer.1.attention.self.value", ("v_proj",)),
        ("bert.encoder.layer.1.attention.output.dense", ("out_proj",)),
        ("bert.encoder.layer.1.output.dense", ("down_proj",)),
        ("bert.encoder.layer.1.intermediate.dense", ("up_proj",)),
        ("encoder.block.0.layer.0.SelfAttention.o", ("out_proj",)),
        ("encoder.block.0.layer.1.DenseReluDense.wi_0", ("gate_proj",)),
        ("transformer.h.0.attn.c_proj", ("out_proj",)),
        ("transformer.h.0.mlp.c_proj", ("down_proj",)),
        ("lm_head", ()),
        ("bert.pooler.dense", ()),
    ],
)
def test_projections_are_known_by_the_end_of_their_path(path, targets):
    assert targets_of(path) == targets


def test_a_target_that_the_module_lacks_is_refused_with_those_that_it_has():
    with pytest.raises(ConfigError, match="has down_proj, k_proj, out_proj, q_proj, up_proj, v_proj; got gate_proj"):
        prepare_module(bert(), workload(lora=Lora(rank=2, targets=("gate_proj",))))
    assert {target for name in ("q_proj", "gate_up_proj") for target in targets_of(name)} <= set(LORA_TARGETS)


# Optimizers


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("sgd", ["SGD"]),
        ("momentum", ["SGD"]),
        ("adam", ["Adam"]),
        ("adamw", ["AdamW"]),
        ("adafactor", ["Adafactor"]),
        ("muon", ["Muon", "AdamW"]),
    ],
)
@pytest.mark.parametrize("step", ["foreach", "loop"])
def test_the_optimizer_is_torchs_and_has_every_trained_parameter_once(name, kinds, step):
    model = llama()
    optimizers = make_optimizers(model, workload(optimizer=name, optimizer_step=step))
    assert [type(one).__name__ for one in optimizers] == kinds
    held = [id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
    assert sorted(held) == sorted(id(one) for one in model.parameters())
    settings = optimizers[-1].defaults
    assert settings["foreach"] is (step == "foreach")
    assert settings.get("momentum", 0) == (0.9 if name == "momentum" else 0)


def test_muon_steps_the_matrices_of_the_layers_alone():
    muon, _ = make_optimizers(model := llama(), workload(optimizer="muon"))
    matrices = {id(one) for layer in model.model.layers for one in layer.parameters() if one.dim() == 2}
    assert {id(one) for one in muon.param_groups[0]["params"]} == matrices


@pytest.mark.parametrize(("name", "step"), [("lion", "loop"), ("adamw8bit", "loop"), ("adafactor", "fused")])
def test_an_optimizer_that_torch_lacks_is_refused(name, step):
    with pytest.raises(UnsupportedError, match=f"one of torch's: .* got {name}, {step}"):
        make_optimizers(nn.Linear(3, 5), workload(optimizer=name, optimizer_step=step))


def test_nothing_to_train_is_refused():
    with pytest.raises(ModelError, match="needs a parameter that requires a gradient"):
        make_optimizers(nn.Linear(3, 5).requires_grad_(False), workload())


# Loss


def test_cross_entropy_of_a_causal_model_is_transformers_own():
    model, inputs = llama(), tokens()
    expected = model(**inputs, labels=inputs["input_ids"]).loss.detach()
    loss, _ = gradients(model, workload(loss="cross_entropy"), inputs)
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)


def test_cross_entropy_of_a_masked_model_is_transformers_own():
    inputs = {**tokens(), "labels": torch.full((BATCH, SEQ), -100)}
    inputs["labels"][:, 3] = 5
    expected = bert().eval()(**inputs).loss.detach()
    loss, _ = gradients(bert(), workload(loss="cross_entropy", dropout=False), inputs)
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)


@pytest.mark.parametrize("make", [llama, bert])
def test_the_chunked_loss_is_the_plain_one_in_pieces(make):
    plain, pieces = (workload(loss=f"{kind}cross_entropy", dropout=False) for kind in ("", "chunked_"))
    expected_loss, expected = gradients(make(), plain, tokens())
    loss, found = gradients(make(), pieces, tokens())
    torch.testing.assert_close(loss, expected_loss)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name.replace(".projection", "")])


def test_the_sum_is_of_the_first_numbers():
    loss = make_loss(nn.Identity(), (), workload())({"scores": torch.full((3,), 2.0)})
    assert loss == 6


def test_a_loss_over_scores_that_change_after_the_projection_is_refused():
    model = bert()
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(UnsupportedError, match="last step is its output projection; got BertForMaskedLM with final_"):
        prepare_module(model, workload(loss="chunked_cross_entropy"))
    with pytest.raises(UnsupportedError, match="got Linear: give loss 'cross_entropy'"):
        prepare_module(nn.Linear(3, 5), workload(loss="chunked_cross_entropy"))


def test_tokens_to_predict_are_needed():
    with pytest.raises(UnsupportedError, match="needs tokens among the inputs"):
        make_loss(nn.Identity(), (torch.ones(3),), workload(loss="cross_entropy"))


def test_scores_of_each_token_are_compared_with_the_next_one():
    scores = torch.randn(1, 3, VOCAB)
    found = make_loss(nn.Identity(), (torch.tensor([[4, 6, 9]]),), workload(loss="cross_entropy"))(scores)
    torch.testing.assert_close(found, functional.cross_entropy(scores[0, :2], torch.tensor([6, 9])))


def test_the_dropout_of_our_own_layer_is_switched_off_and_its_config_left_to_others():
    config = AttentionConfig(embed_dim=6, num_heads=2, dropout_p=0.5)
    layer = MultiHeadAttention.from_config(config)
    prepare_module(layer, workload(dropout=False))
    assert layer.config.dropout_p == 0.0 and config.dropout_p == 0.5


def test_selective_checkpoints_reach_our_own_attention():
    layer = MultiHeadAttention(6, 2)
    prepare_module(layer, workload(checkpoint="selective"))
    assert layer.recomputes
