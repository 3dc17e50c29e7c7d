"""Ablated heads against a plain recomputation of each layer from its full maps and its values."""

import pytest
import torch
from torch import nn

from headwise.config.position import Rotary
from headwise.convert.surgery import prune_heads
from headwise.errors import ConfigError, ModelError
from headwise.inspection.ablation.ablate import ablated
from headwise.inspection.ablation.chosen_heads import projections_of
from headwise.inspection.capture.readers import open_stacks
from headwise.masks.patterns import Causal
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention

transformers = pytest.importorskip("transformers")

VOCAB, TOKENS = 53, 7
IDS = torch.randint(1, VOCAB, (3, TOKENS), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]])
TEXTS = {"input_ids": IDS, "attention_mask": PADDED}
GONE = {(0, 1), (1, 0), (1, 2)}
SIZES = {"vocab_size": VOCAB, "hidden_size": 12, "num_hidden_layers": 2, "initializer_range": 0.5}

# of each family: class, settings, path of the values' projection and of the heads', where values lie in what it gives
FAMILIES = {
    "Bert": (
        SIZES | {"num_attention_heads": 3, "intermediate_size": 13},
        "encoder.layer.{}.attention.self.value",
        "encoder.layer.{}.attention.output.dense",
        lambda values: values.unflatten(-1, (3, 4)),
    ),
    "GPT2": (
        {"vocab_size": VOCAB, "n_embd": 12, "n_head": 3, "n_layer": 2, "initializer_range": 0.5},
        "h.{}.attn.c_attn",
        "h.{}.attn.c_proj",
        lambda values: values.chunk(3, dim=-1)[2].unflatten(-1, (3, 4)),
    ),
    "Llama": (
        SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 13},
        "layers.{}.self_attn.v_proj",
        "layers.{}.self_attn.o_proj",
        lambda values: values.unflatten(-1, (2, 2)).repeat_interleave(2, dim=-2),
    ),
    "T5Encoder": (
        {"vocab_size": VOCAB, "d_model": 12, "d_kv": 5, "d_ff": 13, "num_heads": 3, "num_layers": 2},
        "encoder.block.{}.layer.0.SelfAttention.v",
        "encoder.block.{}.layer.0.SelfAttention.o",
        lambda values: values.unflatten(-1, (3, 5)),
    ),
    "ViT": (
        SIZES | {"num_attention_heads": 3, "intermediate_size": 13, "image_size": 12, "patch_size": 6},
        "layers.{}.attention.v_proj",
        "layers.{}.attention.o_proj",
        lambda values: values.unflatten(-1, (3, 4)),
    ),
    "Bloom": (
        {"vocab_size": VOCAB, "hidden_size": 12, "n_head": 3, "n_layer": 2, "initializer_range": 0.5},
        "h.{}.self_attention.query_key_value",
        "h.{}.self_attention.dense",
        lambda values: values.unflatten(-1, (3, 3, 4))[..., 2, :],
    ),
}


def build(family, implementation="eager"):
    torch.manual_seed(0)
    settings = FAMILIES[family][0]
    config = getattr(transformers, f"{family.removesuffix('Encoder')}Config")(**settings)
    cls = getattr(transformers, f"{family}Model")
    return cls._from_config(config, attn_implementation=implementation).double().eval()


def inputs_of(family):
    if family == "ViT":
        return {"pixel_values": torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0)).double()}
    return TEXTS


@pytest.mark.parametrize("family", FAMILIES)
def test_zero_is_what_full_maps_and_values_give_without_the_heads(family):
    _, value_path, projection_path, values_of = FAMILIES[family]
    model = build(family)
    values, outputs = {}, {}
    for layer in range(2):
        model.get_submodule(value_path.format(layer)).register_forward_hook(
            lambda module, _, output, layer=layer: values.update({layer: values_of(output)})
        )
        model.get_submodule(projection_path.format(layer)).register_forward_hook(
            lambda module, _, output, layer=layer: outputs.update({layer: output})
        )
    with torch.no_grad(), ablated(model, GONE):
        maps = model(**inputs_of(family), output_attentions=True).attentions
        for layer in range(2):
            heads = torch.einsum("bhts,bshv->bthv", maps[layer].double(), values[layer])
            for gone in (head for of, head in GONE if of == layer):
                heads[:, :, gone] = 0.0
            projection = model.get_submodule(projection_path.format(layer))
            weight = projection.weight.T if family == "GPT2" else projection.weight
            expected = heads.flatten(2) @ weight.T
            if projection.bias is not None:
                expected += projection.bias
            # float64 sums of up to 12 terms of size about 10
            torch.testing.assert_close(outputs[layer], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("Bloom", "T5Encoder")])
def test_what_is_left_does_not_depend_on_the_attention_implementation(family):
    eager, sdpa = build(family), build(family, "sdpa")
    assert sdpa.config._attn_implementation == "sdpa"
    inputs = inputs_of(family)
    real = torch.ones(3, 5, dtype=torch.bool) if family == "ViT" else PADDED.bool()
    with torch.no_grad():
        plain = sdpa(**inputs).last_hidden_state
        with ablated(eager, GONE), ablated(sdpa, GONE):
            without = sdpa(**inputs).last_hidden_state
            expected = eager(**inputs).last_hidden_state
    # eager attention computes its softmax in float32: 2^-24 a weight, through two layers that scale it by some tens
    torch.testing.assert_close(without[real], expected[real], rtol=0, atol=1e-5)
    assert (without - plain)[real].abs().max() > 0.01


OURS = {
    "own": lambda: MultiHeadAttention(12, 6, num_kv_heads=2, mask=Causal(), position=Rotary()),
    "fused": lambda: MultiHeadAttention(12, 3, fused_qkv=True, impl="reference"),
    "sdpa": lambda: MultiHeadAttention(12, 3, impl="sdpa"),
    "latent": lambda: LatentAttention(
        12, 3, q_lora_rank=5, kv_lora_rank=7, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4
    ),
    "torch": lambda: nn.MultiheadAttention(12, 3, batch_first=True),
    "like torch": lambda: TorchMultiheadAttention(12, 3, batch_first=True),
}


@pytest.mark.parametrize("kind", OURS)
def test_zero_is_a_projection_without_the_columns_of_the_heads(kind):
    torch.manual_seed(0)
    layer = OURS[kind]().double().eval()
    tokens = torch.randn(2, TOKENS, 12, dtype=torch.float64)
    args = (tokens,) * (3 if isinstance(layer, nn.MultiheadAttention) else 1)

    def run():
        output = layer(*args)
        return output[0] if isinstance(output, tuple) else output

    with torch.no_grad():
        with ablated(layer, [(0, 2)]):
            found = run()
        size = layer.out_proj.in_features // (6 if kind == "own" else 3)
        layer.out_proj.weight[:, 2 * size : 3 * size] = 0.0
        torch.testing.assert_close(found, run(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("gone", [{1, 4}, {0, 1, 2}])
def test_zero_equals_the_pruned_layer(gone):
    torch.manual_seed(0)
    layer = OURS["own"]().double().eval()
    tokens = torch.randn(2, TOKENS, 12, dtype=torch.float64)
    with torch.no_grad(), ablated(layer, [(0, head) for head in gone]):
        torch.testing.assert_close(layer(tokens), prune_heads(layer, gone)(tokens), rtol=0, atol=1e-14)


def heads_of(model, inputs):
    """Return what the heads of BERT's layers put out, (B, T, H, V) each, read at their projections."""
    read = []
    handles = [
        layer.attention.output.dense.register_forward_pre_hook(
            lambda _, args: read.append(args[0].unflatten(-1, (3, 4)))
        )
        for layer in model.encoder.layer
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return read


def test_mean_is_over_the_real_tokens_of_the_reference():
    model = build("Bert")
    first, second = ({name: value[rows] for name, value in TEXTS.items()} for rows in (slice(2), slice(2, 3)))
    kept = torch.cat([heads_of(model, part)[1][part["attention_mask"].bool()] for part in (first, second)])
    assert len(kept) == PADDED.sum()
    expected = kept.mean(dim=0)
    with ablated(model, [(1, 0), (1, 2)], "mean", reference=[first, second]):
        found = heads_of(model, first)
    for head in (0, 2):
        torch.testing.assert_close(found[1][:, :, head], expected[head].expand(2, TOKENS, 4), rtol=0, atol=1e-14)
    assert torch.equal(found[0], heads_of(model, first)[0])
    assert torch.equal(found[1][:, :, 1], heads_of(model, first)[1][:, :, 1])


def test_resample_takes_the_tokens_of_another_text_over_and_over():
    model = build("Bert")
    plain = heads_of(model, TEXTS)[0]
    shifts = set()
    for seed in range(9):
        with ablated(model, [(0, 1)], "resample", reference=TEXTS, seed=seed):
            found = heads_of(model, TEXTS)[0]
            again = heads_of(model, TEXTS)[0]  # texts 3, 4 and 5, with 3 in the reference
        assert torch.equal(again, found)
        shift = next(shift for shift in range(3) if torch.equal(found[0, 0, 1], plain[shift, 0, 1]))
        shifts.add(shift)
        for text in range(3):
            donor = (text + shift) % 3
            tokens = [token % int(PADDED[donor].sum()) for token in range(TOKENS)]
            assert torch.equal(found[text, :, 1], plain[donor, tokens, 1])
        assert torch.equal(found[:, :, [0, 2]], plain[:, :, [0, 2]])
    assert shifts == {1, 2}


def test_the_texts_of_one_batch_resample_from_those_after_it():
    model = build("Bert")
    parts = [{name: value[row : row + 1] for name, value in TEXTS.items()} for row in range(3)]
    with ablated(model, [(0, 1)], "resample", reference=parts, seed=1):
        one_by_one = [heads_of(model, part)[0][:, :, 1] for part in parts]
    with ablated(model, [(0, 1)], "resample", reference=TEXTS, seed=1):
        together = heads_of(model, TEXTS)[0][:, :, 1]
    real = PADDED.bool()
    torch.testing.assert_close(torch.cat(one_by_one)[real], together[real], rtol=0, atol=1e-13)


def test_stacks_of_an_encoder_decoder_are_ablated_by_name():
    torch.manual_seed(0)
    model = nn.Transformer(12, 2, 2, 2, 13, batch_first=True).eval()
    source, target = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    found = {}
    with torch.no_grad():
        for stack in ("encoder", "decoder", "cross"):
            with ablated(model, [(1, 0)], stack=stack):
                found[stack] = model(source, target)
        found["none"] = model(source, target)
        layer = model.decoder.layers[1].multihead_attn
        layer.out_proj.weight[:, :6] = 0.0
        torch.testing.assert_close(found["cross"], model(source, target))
    assert len({output.sum().item() for output in found.values()}) == 4
    with pytest.raises(ModelError, match=r"stack must be one of Transformer's: 'encoder' \(2 layers\), .*; got None"):
        ablated(model, [(1, 0)]).__enter__()


def test_stacks_have_the_names_and_layers_that_reading_their_attention_finds():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=12,
        encoder_layers=3,
        decoder_layers=2,
        encoder_ffn_dim=13,
        decoder_ffn_dim=11,
        encoder_attention_heads=3,
        decoder_attention_heads=2,
    )
    model = transformers.BartModel(config)
    stacks = open_stacks(model, TEXTS | {"decoder_input_ids": IDS[:, :5]}).stacks
    assert {each.name: each.num_layers for each in stacks} == {"encoder": 3, "decoder": 2, "cross": 2}
    assert [len(projections_of(model, each.name)) for each in stacks] == [each.num_layers for each in stacks]
    assert [projections_of(model, each.name)[1].num_heads for each in stacks] == [3, 2, 2]


def test_gradients_pass_and_an_ablated_head_has_none():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3)
    with ablated(layer, [(0, 1)]):
        layer(torch.randn(2, TOKENS, 12)).square().sum().backward()
    gradient = layer.v_proj.weight.grad.unflatten(0, (3, 4)).abs().sum(dim=(1, 2))
    assert (gradient > 0).tolist() == [True, False, True]


def test_no_head_ablates_nothing_to_the_bit():
    model = build("Bert", "sdpa")
    with torch.no_grad():
        plain = model(**TEXTS).last_hidden_state
        with ablated(model, []):
            assert torch.equal(model(**TEXTS).last_hidden_state, plain)


class MidwayError(Exception):
    pass


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_the_model_is_as_it_was_after_an_exception(mode):
    model = build("Bert").train()
    model.encoder.layer[0].eval()

    def state():
        return [(path, part.training, len(part._forward_pre_hooks)) for path, part in model.named_modules()]

    before, reference = state(), None if mode == "zero" else TEXTS
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(MidwayError), ablated(model, GONE, mode, reference=reference):
        model(**TEXTS)
        raise MidwayError
    assert state() == before
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    with pytest.raises(ModelError, match="must hold input_ids for BertModel; got input_idz"):
        ablated(model, GONE, "mean", reference={"input_idz": IDS}).__enter__()
    assert state() == before


def test_heads_that_a_pass_never_reached_are_told_at_the_end():
    model = build("Bert")
    model.encoder.layer = model.encoder.layer[:1]
    hidden = model.encoder.layer[0]
    hidden.forward = lambda states, *_, **__: states
    with (
        pytest.raises(ModelError, match=r"must call encoder\.layer\.0\.attention\.output\.dense"),
        ablated(model, [(0, 1)]),
    ):
        model(**TEXTS)


@pytest.mark.parametrize(
    ("heads", "fault"),
    [
        ({(2, 0)}, r"heads must be of layers 0 to 1, as the model has 2; got \(2, 0\)$"),
        ({(-1, 0)}, r"heads must be of layers 0 to 1.*; got \(-1, 0\)$"),
        ({(1, 3)}, r"heads of layer 1 must be from 0 to 2; got \(1, 3\)$"),
        ({(1, -1)}, r"heads of layer 1 must be from 0 to 2; got \(1, -1\)$"),
        ([1, 2], r"heads must be a collection of pairs \(layer, head\) of whole numbers; got \[1, 2\]$"),
        ([(0, True)], "heads must be a collection of pairs"),
        ([(0, 1, 2)], "heads must be a collection of pairs"),
        ({0: 1}, "heads must be a collection of pairs"),
        (3, "heads must be a collection of pairs"),
    ],
)
def test_heads_that_do_not_exist_are_refused_in_a_line(heads, fault, without_type_checks):
    with pytest.raises(ConfigError, match=fault) as caught:
        ablated(build("Bert"), heads).__enter__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "error", "fault"),
    [
        ({"mode": "none"}, ConfigError, 'mode must be "zero" or "mean" or "resample"; got \'none\''),
        ({"mode": "mean"}, ConfigError, "reference must be given for mode 'mean'; got None"),
        ({"reference": TEXTS}, ConfigError, "reference must be left out for mode 'zero'; got one"),
        ({"mode": "mean", "reference": 3}, ModelError, "reference must be what the model is called with.*int"),
        ({"mode": "mean", "reference": []}, ModelError, "reference must be what the model is called with.*list"),
        (
            {"mode": "resample", "reference": {"input_ids": IDS[:1]}},
            ConfigError,
            "reference must hold two texts or more to resample from another; got 1",
        ),
        *(
            (
                {
                    "mode": mode,
                    "reference": {"input_ids": IDS, "attention_mask": torch.tensor([[1], [0], [1]]) * PADDED},
                },
                ConfigError,
                "each text of reference must hold a token that is no padding; got one without$",
            )
            for mode in ("mean", "resample")
        ),
        ({"stack": "cross"}, ModelError, r"stack must be one of BertModel's: 'self' \(2 layers\); got 'cross'"),
    ],
)
def test_what_a_mode_cannot_use_is_refused_in_a_line(settings, error, fault, without_type_checks):
    with pytest.raises(error, match=fault) as caught:
        ablated(build("Bert"), GONE, **settings).__enter__()
    assert "\n" not in str(caught.value)


def test_a_model_without_heads_is_refused_in_a_line():
    with pytest.raises(ModelError, match=r"heads are changed where a projection reads them.*; Linear has none$"):
        ablated(nn.Linear(3, 3), []).__enter__()
