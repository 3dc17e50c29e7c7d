"""Families of Hugging Face models, each small and with random weights: what is captured is what eager mode computes."""

import pytest
import torch
from benchmarks.inspect_families import TOLERANCE, as_table, build, examine

from headwise.errors import ModelError
from headwise.inspection.capture.readers import open_stacks
from headwise.integrations.transformers_attention import keep_implementation, use_eager_attention

# One row padded on the right and one on the left: a mask that is misread on either side shows.
REAL = torch.tensor([[1] * 7 + [0] * 4, [0] * 6 + [1] * 5])
IDS = torch.randint(5, 97, (2, 11), generator=torch.Generator().manual_seed(1))
DECODER_IDS = IDS[:, :7]

CAPTURED = (
    *("bert", "roberta", "distilbert", "albert", "electra", "xlm-roberta"),
    *("gpt2", "gpt_neox", "gptj", "opt", "llama", "mistral", "mixtral", "qwen2", "qwen3"),
    *("gemma2", "gemma3_text", "phi3", "stablelm", "cohere", "gpt_oss", "deepseek_v3", "jamba"),
)
SETTINGS = {"gemma2": {"attn_logit_softcapping": 3.0}}  # low enough for every score to feel it
IN_EAGER_MODE = ("falcon", "bloom", "deberta-v2", "gpt_neo", "mpnet", "big_bird", "xlnet")
BOTH_STACKS = ("t5", "bart", "marian")


def read(model, inputs):
    reader = open_stacks(model, inputs)
    weights = {stack.name: [] for stack in reader.stacks}
    visible = {stack.name: [] for stack in reader.stacks}

    def observer(stack, number, layer):
        blocks = list(layer.blocks())
        assert number == len(weights[stack])
        weights[stack].append(torch.cat([block.weights for block in blocks], dim=2))
        visible[stack].append(torch.cat([block.visible for block in blocks], dim=2))

    reader.read(inputs, observer)
    return weights, visible, reader.notes


def in_eager_mode(model, inputs):
    with torch.no_grad(), keep_implementation(model):
        use_eager_attention(model)
        return model(**inputs, use_cache=False, output_attentions=True)


@pytest.mark.parametrize("family", CAPTURED)
def test_what_is_captured_is_what_eager_mode_computes_on_real_tokens(family):
    model = build(family, **SETTINGS.get(family, {}))
    inputs = {"input_ids": IDS, "attention_mask": REAL}
    before = model.config._attn_implementation
    weights, visible, notes = read(model, inputs)
    assert model.config._attn_implementation == before
    expected = [layer for layer in in_eager_mode(model, inputs).attentions if layer is not None]
    assert len(weights["self"]) == len(expected) == (1 if family == "jamba" else 2)
    assert bool(notes) == (family == "jamba")  # which has one layer of two that is attention
    rows = REAL.bool()[:, None, :].expand(expected[0].shape[:3])
    for got, seen, want in zip(weights["self"], visible["self"], expected, strict=True):
        torch.testing.assert_close(got[rows], want[rows], rtol=0, atol=TOLERANCE)
        assert got[rows].max() > 0.5  # far from uniform, else a wrong scale could hide
        assert not (got * (1 - REAL)[:, None, None, :]).any()
        assert not (seen & ~REAL.bool()[:, None, None, :]).any()


def test_a_sink_takes_its_share_of_the_weights():
    model = build("gpt_oss")
    for layer in model.layers:
        layer.self_attn.sinks.data = torch.tensor([0.0, 10.0, 20.0, 30.0])
    weights, _, _ = read(model, {"input_ids": IDS})
    for got, want in zip(weights["self"], in_eager_mode(model, {"input_ids": IDS}).attentions, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE)
        assert got[:, 3].sum(-1).max() < 0.5  # no score comes near the largest sink


def test_layers_that_are_no_attention_are_told_and_not_counted():
    _, _, notes = read(build("jamba"), {"input_ids": IDS})
    assert notes == ("1 of the 2 layers of JambaModel have softmax attention; they are numbered from 0.",)


def test_a_pooling_head_with_attention_of_its_own_is_left_out_and_a_note_says_so():
    weights, _, notes = read(build("aimv2_vision_model"), {"pixel_values": torch.randn(2, 3, 32, 32)})
    assert len(weights["self"]) == 2
    assert "Left out is Aimv2AttentionPoolingHead" in notes[0]


@pytest.mark.parametrize("family", IN_EAGER_MODE)
def test_families_that_bypass_the_interface_are_read_in_eager_mode_and_a_note_says_so(family):
    model = build(family)
    inputs = {"input_ids": IDS, "attention_mask": REAL}
    weights, _, notes = read(model, inputs)
    expected = in_eager_mode(model, inputs).attentions
    rows = REAL.bool()[:, None, :].expand(expected[0].shape[:3])
    for got, want in zip(weights["self"], expected, strict=True):
        assert torch.equal(got[rows], want[rows])
        # a row of 11 float32 weights, each off by half an eps
        torch.testing.assert_close(got[rows].sum(-1), torch.ones_like(got[rows].sum(-1)), rtol=0, atol=1e-6)
        assert not (got[rows] * (1 - REAL)[:, None, None, :].expand_as(got)[rows]).any()
    assert "was read in eager mode, since 2 of its 2 layers bypass transformers' AttentionInterface" in notes[0]


@pytest.mark.parametrize("family", BOTH_STACKS)
def test_encoder_decoder_and_cross_attention_are_what_eager_mode_computes(family):
    model = build(family).double()  # T5 does not scale its scores, whose float32 roundings are the larger for it
    inputs = {"input_ids": IDS, "attention_mask": REAL, "decoder_input_ids": DECODER_IDS}
    weights, visible, notes = read(model, inputs)
    output = in_eager_mode(model, inputs)
    assert list(weights) == ["encoder", "decoder", "cross"]
    assert notes == ()
    rows = REAL.bool()[:, None, :].expand(output.encoder_attentions[0].shape[:3])
    for got, want in zip(weights["encoder"], output.encoder_attentions, strict=True):
        torch.testing.assert_close(got[rows], want[rows], rtol=0, atol=TOLERANCE)
    for stack, expected in (("decoder", output.decoder_attentions), ("cross", output.cross_attentions)):
        torch.testing.assert_close(weights[stack], list(expected), rtol=0, atol=TOLERANCE)
    assert not visible["decoder"][0].triu(1).any()
    assert torch.equal(visible["cross"][0][:, 0], REAL.bool()[:, None, :].expand(2, 7, 11))


def test_sound_has_no_tokens_and_its_decoder_reads_it():
    model = build("whisper", max_source_positions=13)
    inputs = {"input_features": torch.randn(2, 80, 26), "decoder_input_ids": DECODER_IDS}
    weights, _, _ = read(model, inputs)
    output = in_eager_mode(model, inputs)
    for stack in ("encoder", "decoder", "cross"):
        expected = getattr(output, f"{stack}_attentions")
        torch.testing.assert_close(weights[stack], list(expected), rtol=0, atol=TOLERANCE)
    assert weights["cross"][0].shape == (2, 4, 7, 13)


@pytest.mark.parametrize("family", ["vit", "clip_vision_model"])
def test_patches_of_images_are_read(family):
    model = build(family)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))}
    weights, _, _ = read(model, inputs)
    with torch.no_grad(), keep_implementation(model):
        use_eager_attention(model)
        expected = model(**inputs, output_attentions=True).attentions
    torch.testing.assert_close(weights["self"], list(expected), rtol=0, atol=TOLERANCE)
    assert weights["self"][0].shape == (2, 4, 17, 17)  # 4 x 4 patches and the class token


def test_two_towers_are_two_stacks():
    model = build("clip")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    weights, _, _ = read(model, {"input_ids": IDS, "attention_mask": REAL, "pixel_values": images})
    towers = {"text_model": {"input_ids": IDS, "attention_mask": REAL}, "vision_model": {"pixel_values": images}}
    for name, inputs in towers.items():
        alone, _, _ = read(getattr(model, name), inputs)
        torch.testing.assert_close(weights[name], alone["self"], rtol=0, atol=0)


def test_weights_by_window_are_refused():
    with pytest.raises(ModelError, match="513 weights for each of 11 queries, not one for each token of the text"):
        read(build("longformer"), {"input_ids": IDS, "attention_mask": REAL})


def test_a_model_without_attention_is_refused():
    with pytest.raises(ModelError, match="MambaModel cannot be read: none of its layers goes through"):
        read(build("mamba"), {"input_ids": IDS})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_layer_that_does_more_than_it_tells_is_found_out_and_read_in_eager_mode(implementation, monkeypatch):
    from transformers.models.llama import modeling_llama

    model = build("llama")
    model.set_attn_implementation("eager")
    plain = modeling_llama.eager_attention_forward

    def flatter(module, query, *rest, **keywords):
        return plain(module, query / 2, *rest, **keywords)

    if implementation == "eager":
        monkeypatch.setattr(modeling_llama, "eager_attention_forward", flatter)
    inputs = {"input_ids": IDS, "attention_mask": REAL}
    weights, _, notes = read(model, inputs)
    assert [("do not tell what LlamaAttention attends with" in note) for note in notes] == [True] * (
        implementation == "eager"
    )
    rows = REAL.bool()[:, None, :].expand(2, 4, 11)
    for got, want in zip(weights["self"], in_eager_mode(model, inputs).attentions, strict=True):
        torch.testing.assert_close(got[rows], want[rows], rtol=0, atol=TOLERANCE)


def test_the_benchmark_says_how_every_type_ends():
    rows = [examine(family) for family in ("bert", "bloom", "longformer", "no such type")]
    assert [row["status"] for row in rows] == ["captured", "eager", "refused", "not tried"]
    assert rows[0]["largest_difference"] <= TOLERANCE
    assert "| bert | captured | self 2 | equals eager |" in as_table(rows)
