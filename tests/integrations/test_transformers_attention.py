import gc
import weakref

import pytest
import torch
import transformers

from headwise.errors import UnsupportedError
from headwise.integrations.transformers_attention import (
    is_transformers_model,
    keep_implementation,
    observe_attention,
    use_eager_attention,
)
from headwise.integrations.transformers_backend import register

LAYERS = 3
VOCAB = 53
# as wide an initialisation as makes weights far from uniform, so that a wrong scale or mask shows
SIZES = {"vocab_size": VOCAB, "initializer_range": 0.5}
IDS = torch.randint(1, VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))


def bert():
    config = transformers.BertConfig(
        **SIZES, hidden_size=20, num_attention_heads=4, num_hidden_layers=LAYERS, intermediate_size=7
    )
    return transformers.BertModel(config).eval()


def gpt2():
    config = transformers.GPT2Config(**SIZES, n_embd=20, n_head=4, n_layer=LAYERS, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2Model(config).eval()


def llama():
    config = transformers.LlamaConfig(
        **SIZES,
        hidden_size=24,
        intermediate_size=7,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=LAYERS,
    )
    return transformers.LlamaModel(config).eval()


FAMILIES = {"bert": bert, "gpt2": gpt2, "llama": llama}


def attention_mask(padding):
    mask = torch.ones_like(IDS)
    if padding == "right":
        mask[0, 7:], mask[1, 4:] = 0, 0
    if padding == "left":
        mask[0, :4], mask[1, :7] = 0, 0
    return mask


def observe(model, **inputs):
    weights = []

    def listener(call):
        assert not call.is_cross
        weights.append(torch.cat([block.weights for block in call.weights.blocks()], dim=2))

    with torch.no_grad(), observe_attention(model, listener):
        output = model(**inputs)
    return weights, output


@pytest.mark.parametrize("padding", ["no mask", "none", "right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_observed_weights_equal_those_of_eager_mode_on_real_queries(family, padding):
    torch.manual_seed(0)
    model = FAMILIES[family]()
    mask = attention_mask(padding)
    inputs = {"input_ids": IDS} if padding == "no mask" else {"input_ids": IDS, "attention_mask": mask}
    observed, _ = observe(model, **inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    assert len(observed) == len(expected) == LAYERS
    for layer, weights in enumerate(expected):
        assert weights.max() > 0.5  # far from uniform, else a wrong scale could hide
        rows = mask.bool()[:, None, :, None].expand_as(weights)
        # weights are at most 1, scores a few tens: a few float32 roundings of them
        torch.testing.assert_close(observed[layer][rows], weights[rows], rtol=0, atol=1e-5)
        assert not observed[layer].isnan().any()


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "headwise"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_output_is_that_of_the_models_own_implementation_to_the_bit(family, implementation):
    torch.manual_seed(0)
    register()
    model = FAMILIES[family]()
    model.set_attn_implementation(implementation)
    inputs = {"input_ids": IDS, "attention_mask": attention_mask("right")}
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    weights, output = observe(model, **inputs)
    assert model.config._attn_implementation == implementation
    assert len(weights) == LAYERS
    if implementation != "headwise":
        assert torch.equal(output.last_hidden_state, expected)
    else:
        # the mask that was looked at is a table from then on, whose kernel sums in another order
        torch.testing.assert_close(output.last_hidden_state, expected, rtol=1e-5, atol=1e-5)


def test_an_implementation_whose_masks_cannot_be_read_gives_way_to_sdpa_meanwhile():
    torch.manual_seed(0)
    model = llama()
    inputs = {"input_ids": IDS, "attention_mask": attention_mask("left")}
    expected, _ = observe(model, **inputs)
    model.config._attn_implementation_internal = "flash_attention_2"  # needs a GPU to be set by the public setter
    weights, _ = observe(model, **inputs)
    assert model.config._attn_implementation == "flash_attention_2"
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flash_attention_2"])
def test_a_failure_in_the_middle_leaves_nothing_behind(implementation):
    model = llama()
    model.config._attn_implementation_internal = implementation
    get_interface = transformers.AttentionInterface.get_interface
    heard = []

    def fail(call):
        heard.append(call.module)
        if len(heard) == 2:
            raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"), observe_attention(model, fail):
        model(input_ids=IDS)
    assert len(heard) == 2
    assert model.config._attn_implementation == implementation
    assert transformers.AttentionInterface.get_interface is get_interface
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_the_interface_is_transformers_own_again_after_the_last_of_several_uses():
    get_interface = transformers.AttentionInterface.get_interface
    first, second = bert(), gpt2()
    heard = {"first": 0, "second": 0}

    def count(name):
        def listener(call):
            heard[name] += 1

        return listener

    with torch.no_grad(), observe_attention(first, count("first")):
        with observe_attention(second, count("second")):
            second(input_ids=IDS)
            first(input_ids=IDS)  # belongs to the outer one
        first(input_ids=IDS)
        second(input_ids=IDS)  # which nobody listens to any more
    assert heard == {"first": 2 * LAYERS, "second": LAYERS}
    assert transformers.AttentionInterface.get_interface is get_interface


def test_sub_configs_have_their_own_implementations_again():
    text = {
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 9,
    }
    vision = {**text, "image_size": 4, "patch_size": 2}
    del vision["vocab_size"]
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision)).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    configs = (model.config, model.config.text_config, model.config.vision_config)
    before = [config._attn_implementation for config in configs]
    assert before[1:] == ["eager", "sdpa"]
    configs[1]._attn_implementation_internal = before[1] = "flex_attention"
    with observe_attention(model, lambda call: None):
        assert [config._attn_implementation for config in configs[1:]] == ["sdpa", "sdpa"]
    assert [config._attn_implementation for config in configs] == before


def test_nothing_of_a_model_or_a_listener_stays_behind():
    model = bert()
    seen = []

    def listener(call):
        seen.append(call.weights.shape)

    with torch.no_grad(), observe_attention(model, listener):
        model(input_ids=IDS)
    assert len(seen) == LAYERS
    references = [weakref.ref(model), weakref.ref(listener)]
    del model, listener
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_causal_text_without_padding_keeps_the_fast_path_that_needs_no_mask():
    model, masks = llama(), []

    def listener(call):
        masks.append((call.weights.mask, call.weights.is_causal))

    with torch.no_grad(), observe_attention(model, listener):
        model(input_ids=IDS, attention_mask=attention_mask("none"))
    assert masks == [(None, True)] * LAYERS


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_layer_that_calls_itself_causal_is_so_where_its_function_reads_it(implementation):
    """Without a mask, sdpa goes by the layer's word; eager functions do not."""
    config = transformers.ViTConfig(
        hidden_size=12, num_attention_heads=3, num_hidden_layers=1, intermediate_size=7, image_size=8, patch_size=4
    )
    model = transformers.ViTModel(config).eval()
    model.set_attn_implementation(implementation)
    for part in model.modules():
        if hasattr(part, "is_causal"):
            part.is_causal = True
    (weights,), _ = observe(model, pixel_values=torch.randn(2, 3, 8, 8))
    assert bool(weights.triu(1).any()) == (implementation == "eager")


def test_a_model_with_attention_of_its_own_is_not_heard():
    config = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_head=2, n_layer=2)
    observed, _ = observe(transformers.BloomModel(config).eval(), input_ids=IDS)
    assert observed == []


def test_what_queries_and_keys_do_not_tell_is_refused(monkeypatch):
    model = llama()
    layer = model.layers[1].self_attn
    forward = type(layer).forward
    monkeypatch.setattr(layer, "forward", lambda *args, **keywords: forward(layer, *args, indices=IDS, **keywords))
    with pytest.raises(UnsupportedError, match="LlamaAttention gives indices"):
        observe(model, input_ids=IDS)


def test_cross_attention_is_told_from_self_attention_where_both_texts_are_of_one_length():
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=12,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=7,
        decoder_ffn_dim=7,
        max_position_embeddings=32,
    )
    model, heard = transformers.BartModel(config).eval(), []
    with torch.no_grad(), observe_attention(model, lambda call: heard.append(call.is_cross)):
        model(input_ids=IDS, decoder_input_ids=IDS)
    assert heard == [False, False, True]


def test_every_config_inside_a_model_reads_eager_while_it_is_asked_to():
    model = transformers.FalconModel(
        transformers.FalconConfig(vocab_size=VOCAB, hidden_size=16, num_attention_heads=2, num_hidden_layers=2)
    )
    with keep_implementation(model):
        use_eager_attention(model)
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "sdpa"


def test_a_transformers_model_is_told_from_another_module():
    assert is_transformers_model(bert())
    assert not is_transformers_model(torch.nn.Linear(2, 3))
