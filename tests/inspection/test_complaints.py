"""What users of other tools complain of in public, each with the behaviour that is right.

Complaints whose right behaviour is shown elsewhere are not repeated: pages that ask for nothing and escape everything
(tests/report, tests/browser), tokens of any language (test_tokens.py), memory (test_head_statistics.py).
"""

import json
import math

import pytest
import torch
import transformers
from torch import nn

import headwise
from headwise.errors import HeadwiseError
from headwise.inspection.detail import Detail
from headwise.inspection.inspect import inspect_inputs
from headwise.integrations.layer_weights import ProjectedWeights

VOCAB = 23
SIZES = {"vocab_size": VOCAB, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
IDS = torch.randint(3, VOCAB, (1, 7), generator=torch.Generator().manual_seed(1))
TEXT = {"input_ids": IDS}


def build(family, kind="Model", **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | {"initializer_range": 0.5} | settings)
    return getattr(transformers, f"{family}{kind}")(config).eval()


def weights_of(model, inputs):
    found = []
    reader = headwise.open_reader(model, inputs)
    reader.read(inputs, lambda _, layer: found.append(torch.cat([each.weights for each in layer.blocks()], dim=2)))
    return found


def test_a_text_that_was_padded_to_the_models_length_is_drawn_at_its_own():
    """jessevig/bertviz#121: a view of a text with padding='max_length' takes forever."""
    model = build("Bert", intermediate_size=7)
    padded = {
        "input_ids": torch.cat([IDS, torch.zeros(1, 57, dtype=torch.long)], dim=1),
        "attention_mask": torch.tensor([[1] * 7 + [0] * 57]),
    }
    plain, found = inspect_inputs(model, TEXT), inspect_inputs(model, padded)
    assert len(found.tokens) == found.num_tokens == 7
    assert [each.num_queries for each in found.maps] == [each.num_queries for each in plain.maps] == [7] * 6
    for head, other in zip(found.heads, plain.heads, strict=True):
        assert head.entropy == pytest.approx(other.entropy, abs=1e-5)
        assert head.padding_mass == 0.0


def test_a_model_that_pads_texts_to_whole_blocks_is_never_shown_with_more_positions_than_tokens():
    """jessevig/bertviz#80: "Attention has 1024 positions, while number of tokens is 976"."""
    model = build("BigBird", intermediate_size=7, block_size=4, num_random_blocks=1, max_position_embeddings=64)
    inputs = {"input_ids": torch.randint(3, VOCAB, (1, 53), generator=torch.Generator().manual_seed(2))}
    try:
        found = inspect_inputs(model, inputs, detail=Detail(top_keys=2))
    except HeadwiseError as error:
        assert "\n" not in str(error)
        assert "BigBird" in str(error)
    else:
        assert len(found.tokens) == 53
        assert all(each.num_queries == 53 for each in found.maps)


@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_a_llamas_queries_and_keys_make_up_its_scores_number_by_number(num_kv_heads):
    """jessevig/bertviz#128, #130: no neuron view of LLaMA."""
    model = build("Llama", intermediate_size=7, num_key_value_heads=num_kv_heads)
    seen = []
    headwise.open_reader(model, TEXT).read(TEXT, lambda _, layer: seen.append(layer))
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**TEXT, output_attentions=True).attentions
    for layer, want in zip(seen, expected, strict=True):
        assert isinstance(layer, ProjectedWeights)
        keys = layer.key.repeat_interleave(3 // num_kv_heads, dim=1)
        products = layer.query[:, :, :, None] * keys[:, :, None] * layer.scale  # (B, H, T, S, D): of each number
        scores = products.sum(-1).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
        # scores of a few units, each off by some eps of float32, and weights by as much
        torch.testing.assert_close(scores.softmax(-1), want, rtol=0, atol=2e-5)


def test_a_head_that_looks_at_the_first_token_alone_is_called_a_sink():
    """jessevig/bertviz#131: "every token focuses on the first token"."""

    class Sink(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = headwise.MultiHeadAttention(4, 2, projection_bias=False)
            with torch.no_grad():
                for projection in (self.attention.q_proj, self.attention.k_proj):
                    projection.weight.copy_(10.0 * torch.eye(4))

        def forward(self, x):
            return self.attention(x)

    x = torch.full((1, 40, 4), 0.5)
    x[:, 0] = 5.0  # the first token's key is the longest
    found = inspect_inputs(Sink(), (x,))
    for head in found.heads:
        assert head.sink_mass > 0.99
        assert [role.name for role in head.roles if role.holds] == ["first token"]


@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_bidirectional_attention_is_never_drawn_as_causal_nor_the_other_way_round(family):
    """TransformerLensOrg/CircuitsVis#74: the upper triangle of an encoder's map is masked."""
    model = build(family, intermediate_size=7)
    assert inspect_inputs(model, TEXT).is_causal is (family == "Llama")
    later = torch.ones(7, 7).triu(1).bool()
    for weights in weights_of(model, TEXT):
        assert bool((weights[..., later] == 0).all()) is (family == "Llama")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_images_have_attention_under_every_implementation_and_the_setting_stays(implementation):
    """huggingface/transformers#30978, #38750, #40597: ViT's attentions are all None, or an empty tuple, under sdpa."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7, image_size=12, patch_size=4
    )
    model = transformers.ViTModel(config).eval()
    model.set_attn_implementation(implementation)
    image = {"pixel_values": torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(3))}
    found = weights_of(model, image)
    assert [tuple(each.shape) for each in found] == [(1, 3, 10, 10)] * 2  # a class token and 9 patches
    assert model.config._attn_implementation == implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**image, output_attentions=True).attentions
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_weights_have_one_shape_under_every_implementation_and_sum_to_one(implementation):
    """huggingface/transformers#33417: GPT-2's attentions have other shapes under flash than in eager mode."""
    model = build("GPT2")
    model.set_attn_implementation(implementation)
    for weights in weights_of(model, TEXT):
        assert weights.shape == (1, 3, 7, 7)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3, 7), rtol=0, atol=1e-6)


def test_a_head_that_is_masked_is_out_of_action_and_a_model_whose_heads_do_nothing_is_found_out():
    """huggingface/transformers#35786, #41076: `head_mask` is silently ignored, and no head seems to matter."""
    model = build("Bert", intermediate_size=7)
    ignored = torch.equal(model(**TEXT, head_mask=torch.zeros(2, 3))[0], model(**TEXT)[0])
    assert ignored  # which is what the complaint is about
    every = [(layer, head) for layer in range(2) for head in range(3)]
    with torch.no_grad(), headwise.ablated(model, every):
        assert not torch.allclose(model(**TEXT)[0], model(**TEXT | {"input_ids": IDS.flip(1)})[0].flip(1) * 0.5)
        without = model(**TEXT)[0]
    assert (without - model(**TEXT)[0]).abs().max() > 0.1
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.output.dense.weight.zero_()
    with pytest.raises(HeadwiseError, match="must put out something else with all heads at 0"):
        headwise.ablation_losses(model, TEXT, loss=lambda output, inputs: output[0].square().mean())


@pytest.mark.parametrize("average", [True, False], ids=["averaged", "each"])
def test_torchs_layer_shows_each_head_whatever_its_caller_asks_for(average):
    """pytorch/pytorch#34537, #47583: nn.MultiheadAttention returns averaged weights, or none."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=average, average_attn_weights=average)[0]

    model, x = Layer().eval(), torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(4))
    _, expected = model.attention(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(weights_of(model, (x,))[0], expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("with_gradients", [True, False])
def test_torchs_encoder_is_heard_in_evaluation_without_gradients(with_gradients):
    """pytorch/pytorch#128413, #132700, #82919, #64509, #88810, #99304: hooks of the fast path are not called."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, dim_feedforward=7, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(5))
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.set_grad_enabled(with_gradients):
        found = inspect_inputs(model, (x,))
    assert len(found.heads) == 6
    assert all(0 < head.entropy <= math.log(7) for head in found.heads)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_token_that_may_read_nothing_has_weights_of_0_is_counted_and_spoils_no_mean():
    """pytorch/pytorch#160064, #24816, allenai/OLMo#322: rows that are wholly masked are NaN."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.attention = headwise.MultiHeadAttention(12, 3)

        def forward(self, x):
            allowed = torch.ones(7, 7, dtype=torch.bool)
            allowed[2] = False
            return self.attention(x, mask=headwise.Explicit(allowed))

    x = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(6))
    (weights,) = weights_of(Masked(), (x,))
    assert (weights[:, :, 2] == 0).all()
    for head in inspect_inputs(Masked(), (x,)).heads:
        assert head.num_empty_queries == 1
        assert head.num_nan_queries == 0
        assert math.isfinite(head.entropy)


def test_a_text_of_3000_tokens_gives_summaries_and_no_full_map():
    """inseq-team/inseq#279, jessevig/bertviz#74, #82: no memory beyond some thousand tokens, and no page."""
    model = build("Llama", intermediate_size=7, num_hidden_layers=1, max_position_embeddings=4096)
    inputs = {"input_ids": torch.randint(3, VOCAB, (1, 3001), generator=torch.Generator().manual_seed(7))}
    found = inspect_inputs(model, inputs, max_map_tokens=32, detail=Detail(top_keys=2))
    assert found.num_tokens == 3001
    assert [each.num_queries for each in found.maps] == [32] * 3
    assert len(json.dumps(found.to_dict())) < 3001**2 / 10  # of what a number for each pair would take


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_in_a_batch_are_what_they_are_alone(side):
    """TransformerLensOrg/TransformerLens#240, #1005: padding is attended to in batches."""
    model = build("Llama", intermediate_size=7)
    long = torch.randint(3, VOCAB, (1, 11), generator=torch.Generator().manual_seed(8))
    space = torch.zeros(1, 4, dtype=torch.long)
    parts, real = ([space, IDS], [0] * 4 + [1] * 7) if side == "left" else ([IDS, space], [1] * 7 + [0] * 4)
    batch = {
        "input_ids": torch.cat([torch.cat(parts, dim=1), long]),
        "attention_mask": torch.tensor([real, [1] * 11]),
    }
    own = torch.tensor(real).bool()
    for layer in (0, 1):
        alone = headwise.read_weights(model, TEXT, layer=layer, head=1)
        together = headwise.read_weights(model, batch, layer=layer, head=1, text=0)
        assert together.shape == (int(own.sum()), 7)
        torch.testing.assert_close(together, alone, rtol=0, atol=2e-6)


def test_a_vision_model_of_ones_own_is_read_by_an_adapter_and_windows_are_refused():
    """facebookresearch/dinov2#90, #177, #390, pytorch-image-models#2220, Swin-Transformer#130: no weights of images."""

    class Patches(nn.Module):
        """An attention as timm and DINOv2 write it: one projection, and weights that nobody hears of."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.qkv = nn.Linear(12, 36)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def read(module, args, keywords, output):
        q, k, _ = module.qkv(args[0]).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return ProjectedWeights(query=q, key=k, scale=0.5)

    model, x = Patches(), torch.randn(1, 10, 12, generator=torch.Generator().manual_seed(9))
    with pytest.raises(HeadwiseError, match="register_adapter"):
        inspect_inputs(model, (x,))
    headwise.register_adapter(Patches, read)
    try:
        (weights,) = weights_of(model, (x,))
    finally:
        headwise.register_adapter(Patches, None)
    q, k, _ = model.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(weights, (q @ k.transpose(-2, -1) * 0.5).softmax(-1).detach(), rtol=0, atol=1e-6)

    windowed = transformers.SwinModel(
        transformers.SwinConfig(image_size=16, patch_size=2, embed_dim=6, depths=[1], num_heads=[2], window_size=4)
    ).eval()
    with pytest.raises(HeadwiseError, match="Swin"):
        inspect_inputs(windowed, {"pixel_values": torch.randn(1, 3, 16, 16)})
