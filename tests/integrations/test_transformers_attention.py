import gc
import weakref

import pytest
import torch
import transformers

from headwise.errors import UnsupportedError
from headwise.integrations.transformers_attention import (
    CAPTURE_NAME,
    is_transformers_model,
    keep_implementation,
    observe_attention,
    use_eager_attention,
)

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
    weights = {}

    def observer(number, layer):
        weights[number] = torch.cat([block.weights for block in layer.blocks()], dim=2)

    with torch.no_grad(), observe_attention(model, observer) as count:
        output = model(**inputs)
    assert count.calls == len(weights)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_output_is_that_of_sdpa_to_the_bit(family):
    torch.manual_seed(0)
    model = FAMILIES[family]()
    inputs = {"input_ids": IDS, "attention_mask": attention_mask("right")}
    _, output = observe(model, **inputs)
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        expected = model(**inputs)
    assert torch.equal(output.last_hidden_state, expected.last_hidden_state)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_model_has_its_own_implementation_again_also_after_a_failure(implementation):
    model = llama()
    model.set_attn_implementation(implementation)
    observe(model, input_ids=IDS)
    assert model.config._attn_implementation == implementation

    def fail(number, layer):
        raise RuntimeError("observer")

    with pytest.raises(RuntimeError, match="observer"), observe_attention(model, fail):
        model(input_ids=IDS)
    assert model.config._attn_implementation == implementation


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
    with observe_attention(model, lambda number, layer: None):
        assert {config._attn_implementation for config in configs} == {CAPTURE_NAME}
    assert [config._attn_implementation for config in configs] == before


def test_nothing_of_a_model_or_an_observer_stays_behind():
    model = bert()
    seen = []

    def observer(number, layer):
        seen.append(number)

    with torch.no_grad(), observe_attention(model, observer):
        model(input_ids=IDS)
    assert seen == [0, 1, 2]
    references = [weakref.ref(model), weakref.ref(observer)]
    del model, observer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_one_name_is_registered_once():
    with observe_attention(bert(), lambda number, layer: None):
        registered = dict(transformers.AttentionInterface())
    with observe_attention(bert(), lambda number, layer: None):
        assert dict(transformers.AttentionInterface()) == registered


def test_a_causal_text_without_padding_keeps_the_fast_path_that_needs_no_mask():
    model, masks = llama(), []
    with torch.no_grad(), observe_attention(model, lambda _, layer: masks.append((layer.mask, layer.is_causal))):
        model(input_ids=IDS, attention_mask=attention_mask("none"))
    assert masks == [(None, True)] * LAYERS


def test_a_model_with_attention_of_its_own_is_counted_as_zero_calls():
    config = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_head=2, n_layer=2)
    model = transformers.BloomModel(config).eval()
    observed, _ = observe(model, input_ids=IDS)
    assert observed == {}


def test_scores_that_queries_and_keys_do_not_tell_are_refused():
    config = transformers.Gemma2Config(
        **SIZES,
        hidden_size=24,
        intermediate_size=7,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        num_hidden_layers=1,
    )
    with pytest.raises(UnsupportedError, match="Gemma2Attention gives softcap"):
        observe(transformers.Gemma2Model(config).eval(), input_ids=IDS)


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
