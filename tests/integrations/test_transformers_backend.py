import subprocess
import sys
import warnings

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils as makers

from headwise.errors import ConfigError, MissingExtraError, UnsupportedError
from headwise.integrations import transformers_backend
from headwise.integrations.told_mask import ToldMask, told_by
from headwise.integrations.transformers_backend import NAME, attend, register
from headwise.integrations.transformers_masks import read_mask_function, tell_mask
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import LocalWindow

LAYERS = 2
VOCAB = 53
WINDOW = 3
# as wide an initialisation as makes weights far from uniform, so that a wrong scale or mask shows
SIZES = {"vocab_size": VOCAB, "initializer_range": 0.5}
GROUPED = {
    "hidden_size": 24,
    "intermediate_size": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "head_dim": 6,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": None,
}
IDS = torch.randint(2, VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))


def bert():
    sizes = {"hidden_size": 20, "num_attention_heads": 4, "num_hidden_layers": LAYERS, "intermediate_size": 7}
    return transformers.BertModel(transformers.BertConfig(**SIZES, **sizes))


def gpt2():
    sizes = {"n_embd": 20, "n_head": 4, "n_layer": LAYERS}
    tokens = {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": None}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **sizes, **tokens))


def llama(**settings):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **GROUPED, **settings))


def mistral(**settings):
    settings = {"sliding_window": WINDOW} | settings
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, **GROUPED, **settings))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **GROUPED))


def gemma2():  # a softcap, a scale of its own, and windows in every other layer
    settings = {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 7}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES, **GROUPED, **settings))


def gpt_oss():  # sinks, and windows in every other layer
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    config = transformers.GptOssConfig(**SIZES, **GROUPED, **experts, sliding_window=WINDOW)
    return transformers.GptOssForCausalLM(config)


def t5():  # position biases, cross-attention
    sizes = {"d_model": 20, "d_kv": 5, "d_ff": 7, "num_layers": LAYERS, "num_heads": 3, "dropout_rate": 0.0}
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes, **tokens))


FAMILIES = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gpt_oss": gpt_oss,
    "t5": t5,
}
DECODERS = [family for family in FAMILIES if family != "bert"]
# The others compute norms and their eager softmax in float32, whatever their dtype.
DOUBLE = ("bert", "gpt2", "t5")


@pytest.fixture(autouse=True)
def registered():
    register()


def build(family):
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    return model.double() if family in DOUBLE else model


def padding_mask(padding):
    mask = torch.ones_like(IDS)
    if padding == "right":
        mask[0, 7:], mask[1, 4:] = 0, 0
    if padding == "left":
        mask[0, :4], mask[1, :7] = 0, 0
    return mask


def inputs_of(family, padding):
    inputs = {"input_ids": IDS}
    if padding != "no mask":
        inputs["attention_mask"] = padding_mask(padding)
    if family == "t5":
        inputs["decoder_input_ids"] = IDS[:, :5]
    return inputs


def real_tokens(family, padding, output):
    """Return outputs of tokens that somebody reads: padding before a text attends to nothing here, to all there."""
    return output if family == "t5" or padding == "no mask" else output[padding_mask(padding).bool()]


def assert_equal_within_rounding(actual, expected, *, scale=None):
    """Compare with numbers whose largest is `scale`; default: those of `expected`."""
    # Both compute in the same dtype. In each layer about 8 operations stand in a row, each a sum of at most 24 numbers,
    # whose rounding grows like the root of that, 5; both sides round.
    budget = 2 * LAYERS * 8 * 5 * torch.finfo(expected.dtype).eps
    scale = expected.abs().max().item() if scale is None else scale
    torch.testing.assert_close(actual, expected, rtol=0, atol=budget * scale)


def run(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    return model(**inputs)


@pytest.mark.parametrize("padding", ["no mask", "none", "right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_equal_those_of_eager_mode_on_real_tokens(family, padding):
    model, inputs = build(family), inputs_of(family, padding)
    with torch.no_grad():
        expected, actual = (run(model, name, **inputs)[0] for name in ("eager", NAME))
    assert actual.isfinite().all()
    assert_equal_within_rounding(*(real_tokens(family, padding, output) for output in (actual, expected)))


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_eager_mode(family):
    model, inputs = build(family), inputs_of(family, "right")
    gradients = []
    for name in ("eager", NAME):
        model.zero_grad()
        real_tokens(family, "right", run(model, name, **inputs)[0]).square().sum().backward()
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None})
    expected, actual = gradients
    assert actual.keys() == expected.keys()
    scale = max(one.abs().max().item() for one in expected.values())  # a key's bias has none, but for rounding
    for name in expected:
        assert_equal_within_rounding(actual[name], expected[name], scale=scale)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_generate_gives_the_tokens_of_eager_mode(family, cache):
    model = build(family)
    inputs = {"input_ids": IDS, "attention_mask": padding_mask("left"), "max_new_tokens": 7, "do_sample": False}
    model.set_attn_implementation("eager")
    expected = model.generate(**inputs)
    model.set_attn_implementation(NAME)
    actual = model.generate(**inputs, cache_implementation=cache)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_beams_are_those_of_eager_mode(family, cache):
    model = build(family)
    inputs = {"input_ids": IDS, "attention_mask": padding_mask("left"), "max_new_tokens": 5, "num_beams": 3}
    model.set_attn_implementation("eager")
    expected = model.generate(**inputs)
    model.set_attn_implementation(NAME)
    torch.testing.assert_close(model.generate(**inputs, cache_implementation=cache), expected)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss"])
def test_a_text_in_chunks_equals_the_whole(family):
    model = build(family)
    model.set_attn_implementation(NAME)
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        chunks = [model(chunk, cache=cache)[0] for chunk in IDS.split([5, 4, 1, 1], dim=1)]
        assert_equal_within_rounding(torch.cat(chunks, dim=1), model(IDS)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_equal_those_of_eager_mode(family):
    model, inputs = build(family), inputs_of(family, "right")
    with torch.no_grad():
        expected, actual = (run(model, name, **inputs, output_attentions=True) for name in ("eager", NAME))
    kinds = ["decoder_attentions", "cross_attentions"] if family == "t5" else ["attentions"]
    for kind in kinds:
        assert len(actual[kind]) == len(expected[kind]) == LAYERS
        for ours, theirs in zip(actual[kind], expected[kind], strict=True):
            assert ours.shape == theirs.shape
            ours, theirs = (real_tokens(family, "right", each.transpose(1, 2)) for each in (ours, theirs))  # noqa: PLW2901
            assert_equal_within_rounding(ours, theirs)


def test_padding_before_a_text_attends_to_nothing():
    model = build("llama")
    with torch.no_grad():
        weights = run(model, NAME, **inputs_of("llama", "left"), output_attentions=True).attentions[0]
    assert (weights[0, :, :4] == 0).all() and (weights[1, :, :7] == 0).all()


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_packed_documents_equal_those_of_eager_mode_and_each_text_alone(family):
    model, lengths = build(family), (4, 7)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(len(IDS), -1)
    with torch.no_grad():
        packed = {"input_ids": IDS, "position_ids": positions, "use_cache": False}
        expected, actual = (run(model, name, **packed)[0] for name in ("eager", NAME))
        alone = torch.cat([model(text)[0] for text in IDS.split(lengths, dim=1)], dim=1)
    assert_equal_within_rounding(actual, expected)
    assert_equal_within_rounding(actual, alone)


@pytest.mark.parametrize("as_bool", [True, False])
def test_a_table_of_the_users_own_means_what_it_means_in_eager_mode(as_bool):
    model = build("llama")
    table = torch.ones(1, 1, 11, 11, dtype=torch.bool).tril() & (torch.arange(11) != 2)
    table[..., 2, 2] = True
    additive = torch.where(table, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = run(model, "eager", input_ids=IDS, attention_mask=additive)[0]
        actual = run(model, NAME, input_ids=IDS, attention_mask=table if as_bool else additive)[0]
    assert_equal_within_rounding(actual, expected)


def test_chunks_are_a_table_that_means_the_same():
    config = transformers.LlamaConfig(**GROUPED, attention_chunk_size=4)
    config._attn_implementation = NAME
    mask = makers.create_chunked_causal_mask(config, torch.zeros(3, 11, 1), padding_mask("none"), None)
    place = torch.arange(11)
    expected = (place[:, None] >= place) & (place[:, None] // 4 == place // 4)
    assert torch.equal(mask, expected.expand(3, 1, 11, 11))


# The sizes by all the names that they have in the families below.
TRANSLATOR = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    **dict.fromkeys(("d_model", "hidden_size"), 24),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_layers", "num_hidden_layers", "n_layer"), LAYERS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "attention_heads"), 6),
    **dict.fromkeys(("num_attention_heads", "n_head"), 6),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "intermediate_size"), 7),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), 1),
    "pad_token_id": 0,
    "init_std": 0.5,
    "attention_window": 4,
    "num_experts": 2,
    "block_size": 4,
    "num_global_tokens": 2,
}


def translator(name):
    config_type = getattr(transformers, f"{name}Config")
    own = vars(config_type()) | dict.fromkeys(config_type.attribute_map)
    torch.manual_seed(0)
    config = config_type(**{name: size for name, size in TRANSLATOR.items() if name in own})
    return transformers.AutoModel.from_config(config, attn_implementation=NAME).eval()


def translate(model, mask):
    inputs = {"input_ids": IDS, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS[:, :5]
    torch.manual_seed(0)  # BigBird draws blocks
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("padding", ["no mask", "none", "right"])
@pytest.mark.parametrize("name", ["Bloom", "GPTNeoXJapanese", "XGLM", "Mvp", "LED", "Longformer", "BigBirdPegasus"])
def test_a_model_with_attention_of_its_own_is_refused_by_name(name, padding):
    model = translator(name)
    with pytest.raises(
        UnsupportedError,
        match=f"needs a model whose attention goes through transformers' interface; got {name}Model, which computes "
        r'attention of its own \(use "eager" for it\)',
    ):
        translate(model, None if padding == "no mask" else padding_mask(padding))


@pytest.mark.parametrize("padding", ["no mask", "none", "right"])
@pytest.mark.parametrize("name", ["NllbMoe", "PegasusX"])
def test_a_layer_that_calls_itself_not_causal_gets_the_causal_mask_all_the_same(name, padding):
    model, mask = translator(name), None if padding == "no mask" else padding_mask(padding)
    actual = translate(model, mask)
    model.set_attn_implementation("eager")
    assert_equal_within_rounding(actual, translate(model, mask))


def test_registration_again_changes_nothing():
    before = transformers.AttentionInterface()[NAME], transformers.AttentionMaskInterface()[NAME]
    register()
    assert before == (transformers.AttentionInterface()[NAME], transformers.AttentionMaskInterface()[NAME])


def test_registration_without_transformers_names_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"headwise\[hf\]"):
        register()


def test_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    model = llama(attention_dropout=0.5)
    model.set_attn_implementation(NAME)
    with torch.no_grad():
        trained = [model.train()(IDS)[0] for _ in range(2)]
        evaluated = [model.eval()(IDS)[0] for _ in range(2)]
    assert not torch.equal(*trained)
    assert torch.equal(*evaluated)


@pytest.mark.parametrize("keyword", ["sinks", "indices", "block_indices"])
def test_a_keyword_that_is_not_known_is_refused(keyword):
    query = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UnsupportedError, match=f'{keyword} must be None .*Identity gives some .*use "eager"'):
        attend(torch.nn.Identity(), query, query, query, None, **{keyword: torch.zeros(1)})


def test_a_table_for_another_number_of_keys_is_refused():
    query = torch.zeros(1, 2, 3, 4)
    for table in (torch.ones(1, 1, 3, 5, dtype=torch.bool), tell_mask(1, 3, 5, q_offset=2)):
        with pytest.raises(ConfigError, match=r"\(batch, num_heads, query_len, 3\) for 3 keys; got \(1, 1, 3, 5\)"):
            attend(torch.nn.Identity(), query, query, query, table)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("lengths", [(5, 5), (5, 7), (1, 7)])
def test_no_mask_means_what_it_means_to_sdpa(lengths, is_causal):
    torch.manual_seed(0)
    query_len, key_len = lengths
    query, key, value = torch.randn(2, 6, query_len, 4), *torch.randn(2, 2, 2, key_len, 4).unbind()
    module = torch.nn.Identity().eval()
    module.is_causal, module.num_key_value_groups = is_causal, 3
    bias = torch.randn(1, 6, *lengths)
    for extra in ({}, {"position_bias": bias}, {"scaling": 0.3, "is_causal": not is_causal}):
        expected, _ = transformers.AttentionInterface()["sdpa"](module, query, key, value, None, dropout=0.0, **extra)
        actual, weights = attend(module, query, key, value, None, dropout=0.5, **extra)
        assert_equal_within_rounding(actual, expected)
        assert weights is None


def test_no_mask_is_causal_for_a_module_that_does_not_say():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 5, 7, 4).unbind()
    table = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    module = torch.nn.Identity()
    assert_equal_within_rounding(*(attend(module, query, key, value, mask)[0] for mask in (None, table)))


def test_queries_that_are_the_same_for_each_row_equal_those_written_out():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 5, 3, 4), *torch.randn(2, 2, 5, 7, 4).unbind()
    actual, _ = attend(torch.nn.Identity(), query, key, value, None, is_causal=False)
    expected, _ = attend(torch.nn.Identity(), query.repeat(2, 1, 1, 1), key, value, None, is_causal=False)
    assert_equal_within_rounding(actual, expected)


def test_a_bias_of_the_mask_and_one_of_positions_are_both_added():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 5, 7, 4).unbind()
    bias, position_bias = torch.randn(2, 2, 1, 7, 7).unbind()
    module = torch.nn.Identity()
    actual, _ = attend(module, query, key, value, bias[:, :1], position_bias=position_bias[:1, :1])
    expected, _ = attend(module, query, key, value, bias[:, :1] + position_bias[:1, :1])
    assert_equal_within_rounding(actual, expected)


def test_a_table_of_one_column_holds_for_every_key():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 5, 7, 4).unbind()
    column = torch.arange(7)[:, None] != 2
    actual, _ = attend(torch.nn.Identity(), query, key, value, column[None, None])
    expected, _ = attend(torch.nn.Identity(), query, key, value, column.expand(1, 1, 7, 7))
    assert torch.equal(actual, expected) and (actual[:, 2] == 0).all()


@pytest.mark.parametrize("query_len", [1, 3])
def test_slots_that_wait_for_tokens_have_weights_of_0_in_the_dtype_of_the_model(query_len):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, query_len, 4), *torch.randn(2, 2, 2, 13, 4).unbind()
    num_keys = 5
    told = tell_mask(2, query_len, 13, q_offset=torch.tensor(num_keys - query_len), allow_is_causal_skip=False)
    assert told_by(told).num_keys == num_keys
    query, key, value = (each.bfloat16() for each in (query, key, value))
    key[:, :, num_keys:] = torch.nan
    output, weights = attend(torch.nn.Identity(), query, key, value, told, output_attentions=True)
    assert output.isfinite().all()
    assert weights.shape == (2, 6, query_len, 13) and weights.dtype == torch.bfloat16
    assert (weights[..., num_keys:] == 0).all() and (weights[:, :, -1, :num_keys] > 0).all()


def listen(monkeypatch):
    """Note what reaches `headwise.attention`."""
    attention, calls = transformers_backend.attention, []

    def noted(query, key, value, **keywords):
        calls.append({"query": query, "key": key, "value": value, **keywords})
        return attention(query, key, value, **keywords)

    monkeypatch.setattr(transformers_backend, "attention", noted)
    return calls


def test_grouped_keys_are_never_repeated(monkeypatch):
    calls = listen(monkeypatch)
    run(build("llama"), NAME, input_ids=IDS)
    heads = [tuple(call[name].shape[1] for name in ("query", "key", "value")) for call in calls]
    assert heads == LAYERS * [(6, 2, 2)]


@pytest.mark.parametrize("padding", ["no mask", "none"])
def test_a_plain_text_takes_the_short_way_of_attention_when_it_is_read_and_when_it_goes_on(monkeypatch, padding):
    # which knows calls by their shapes and masks, and serves those without a table, a bias and a scale of their own
    model, calls = build("llama"), listen(monkeypatch)
    inputs = inputs_of("llama", padding)
    model.set_attn_implementation(NAME)
    model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert [call["mask"] for call in calls] == LAYERS * [Causal()] + 2 * LAYERS * [None]
    assert all(call["scale"] is None and call["bias"] is None for call in calls)


def test_another_scale_is_passed_on(monkeypatch):
    calls = listen(monkeypatch)
    query = torch.zeros(1, 2, 3, 4)
    attend(torch.nn.Identity(), query, query, query, None, scaling=0.25)
    assert calls[0]["scale"] == 0.25


def test_outputs_are_contiguous():
    query = torch.zeros(2, 5, 3, 4)
    assert attend(torch.nn.Identity(), query, query, query, None)[0].is_contiguous()


class LargestTensor(TorchDispatchMode):
    """Note the memory of the largest tensor that anything makes."""

    largest_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(tensor, torch.Tensor):
                self.largest_bytes = max(self.largest_bytes, tensor.untyped_storage().nbytes())
        return output


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_recomputed_layers_make_no_table_either(family):
    torch.manual_seed(0)
    model = {"llama": llama, "mistral": lambda: mistral(sliding_window=64)}[family]().model
    model.set_attn_implementation(NAME)
    model.train().activation_checkpointing_enable({"use_reentrant": True})  # which detaches what a layer was given
    length = 1201
    with LargestTensor() as recorded:
        model(torch.zeros(1, length, dtype=torch.long), use_cache=False)[0].sum().backward()
    assert recorded.largest_bytes < length**2


@pytest.mark.parametrize("padding", ["no", "left"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_no_table_of_all_pairs_is_made_for_a_long_text(family, padding):
    torch.manual_seed(0)
    model = {"llama": llama, "mistral": lambda: mistral(sliding_window=64)}[family]().eval().model
    length = 1201
    mask = torch.ones(1, length, dtype=torch.long)
    mask[:, : 300 if padding == "left" else 0] = 0
    inputs = {"input_ids": torch.zeros_like(mask), "attention_mask": mask, "use_cache": False}
    largest = {}
    for name in ("sdpa", NAME):
        with torch.no_grad(), LargestTensor() as recorded:
            run(model, name, **inputs)
        largest[name] = recorded.largest_bytes
    if family == "mistral" or padding == "left":
        assert largest["sdpa"] >= length**2  # the recorder sees a table of bools
    assert largest[NAME] < length**2


FUNCTIONS = {
    "causal": (makers.causal_mask_function, Causal()),
    "full": (makers.bidirectional_mask_function, Full()),
    "window": (makers.sliding_window_causal_mask_function(3), SlidingWindow(3)),
    "two-sided": (makers.sliding_window_bidirectional_mask_function(3), LocalWindow(3, 3)),
    "no window": (makers.sliding_window_causal_mask_function(0), ~Full()),  # Qwen2-MoE, for layers without one
    # joined by hand, of parts of one kind and of two
    "causal and two-sided": (
        makers.and_masks(makers.causal_mask_function, makers.sliding_window_bidirectional_overlay(1)),
        LocalWindow(1, 1) & Causal(),
    ),
    "two windows": (
        makers.and_masks(makers.sliding_window_causal_mask_function(5), makers.sliding_window_causal_mask_function(3)),
        SlidingWindow(3),
    ),
    "two two-sided": (
        makers.and_masks(*map(makers.sliding_window_bidirectional_overlay, (2, 4))),
        LocalWindow(4, 4) & LocalWindow(2, 2),
    ),
    "window and two-sided": (
        makers.and_masks(
            makers.sliding_window_causal_mask_function(4), makers.sliding_window_bidirectional_mask_function(2)
        ),
        LocalWindow(2, 2) & SlidingWindow(4),
    ),
}
PACKED = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
RESTARTED = makers.remap_positions_for_packed_sequence(
    makers.causal_mask_function, torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_transformers_are_told_by_masks_that_allow_the_same(name):
    function, expected = FUNCTIONS[name]
    assert read_mask_function(function) == expected
    table = makers.sdpa_mask(1, 7, 7, mask_function=function, allow_is_causal_skip=False)
    assert torch.equal(
        dense_mask(expected, batch_size=1, num_heads=1, query_len=7, key_len=7).expand(1, 1, 7, 7), table
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda batch, head, query, key: key <= query,
        makers.sliding_window_overlay(3),
        makers.or_masks(makers.causal_mask_function, makers.bidirectional_mask_function),
        makers.chunked_causal_mask_function(3, torch.zeros(1)),
        makers.and_masks(makers.causal_mask_function, makers.packed_sequence_mask_function(PACKED)),
        RESTARTED,
        makers.and_masks(RESTARTED, RESTARTED, makers.packed_sequence_mask_function(PACKED)),
        makers.and_masks(RESTARTED, *2 * [makers.packed_sequence_mask_function(PACKED)]),
        makers.remap_positions_for_packed_sequence(
            makers.packed_sequence_mask_function(PACKED), torch.zeros(1, 7, dtype=torch.long)
        ),
    ],
)
def test_other_functions_are_not_guessed(function):
    assert read_mask_function(function) is None


# (queries, key slots, offset of the queries, offset of the keys): a square, decoding, a chunk, a cache of fixed size at
# its beginning, in its middle and at its end, windows that have moved on, and queries ahead of their keys
PLACES = [
    (7, 7, 0, 0),
    (1, 7, 6, 0),
    (3, 7, 4, 0),
    (5, 13, 0, 0),
    (1, 13, 7, 0),
    (2, 13, 11, 0),
    (3, 5, 9, 7),
    (2, 5, 9, 5),
]


@pytest.mark.parametrize("padding", ["none", "left", "ragged", "short"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_told_mask_is_the_table_of_sdpa(name, places, padding):
    q_length, kv_length, q_offset, kv_offset = places
    keep = torch.ones(2, q_offset + q_length, dtype=torch.bool)
    if padding != "none":
        keep[0, :3] = False
    if padding == "ragged":
        keep[1, 5::2] = False
    if padding == "short":  # what it does not reach is hidden
        keep = keep[:, :-1]
    arguments = {
        "batch_size": 2,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": torch.tensor(q_offset),
        "kv_offset": kv_offset,
        "mask_function": FUNCTIONS[name][0],
        "attention_mask": None if padding == "none" else keep,
        "allow_is_causal_skip": False,
    }
    expected, told = makers.sdpa_mask(**arguments), tell_mask(**arguments)
    assert told.shape == expected.shape and told.dtype == expected.dtype and told.device == expected.device
    assert torch.equal(told & True, expected)
    if name in ("causal", "window") and q_offset + q_length <= kv_offset + kv_length:
        assert isinstance(told, ToldMask) == (q_length > 1)


@pytest.mark.parametrize("q_length", [1, 3])
@pytest.mark.parametrize("name", ["causal", "window"])
def test_what_a_mask_of_a_cache_stands_for_is_known_with_and_without_its_numbers(name, q_length):
    arguments = {"mask_function": FUNCTIONS[name][0], "allow_is_causal_skip": False}
    mask = tell_mask(2, q_length, 13, q_offset=torch.tensor(7 - q_length), **arguments)
    told = told_by(mask)
    expected = dense_mask(told.mask, batch_size=2, num_heads=1, query_len=q_length, key_len=told.num_keys)
    assert (told.num_keys, told.key_len) == (7, 13)
    assert torch.equal(mask[..., :7] & True, expected.expand(2, 1, q_length, 7)) and not mask[..., 7:].any()


def test_a_window_that_reaches_all_keys_is_causal():
    for window, expected in ((6, SlidingWindow(6)), (7, Causal()), (11, Causal())):
        function = makers.sliding_window_causal_mask_function(window)
        assert told_by(tell_mask(2, 7, 7, mask_function=function)).mask == expected


BIDIRECTIONAL = {
    "mask_function": makers.bidirectional_mask_function,
    "allow_is_causal_skip": False,
    "allow_is_bidirectional_skip": True,
}


def test_only_a_single_query_gets_no_mask_which_no_layer_can_misread():
    assert told_by(tell_mask(2, 7, 7)).mask == Causal()
    assert told_by(tell_mask(2, 7, 7, **BIDIRECTIONAL)).mask == Full()
    assert tell_mask(2, 1, 7, 6) is None
    assert tell_mask(2, 1, 7, **BIDIRECTIONAL) is None
    assert told_by(tell_mask(2, 1, 13, 6)).num_keys == 7
    keep = torch.arange(7) > torch.tensor([[2], [0]])
    assert tell_mask(2, 1, 7, 6, attention_mask=keep) is not None
    assert tell_mask(2, 1, 7, attention_mask=keep, **BIDIRECTIONAL) is not None


@pytest.mark.parametrize("arguments", [{}, BIDIRECTIONAL], ids=["causal", "full"])
def test_without_numbers_the_layers_that_read_no_mask_as_sdpa_does_get_none(arguments):
    with FakeTensorMode():
        assert tell_mask(2, 7, 7, config=transformers.LlamaConfig(), **arguments) is None
        assert tell_mask(2, 1, 7, 6, config=transformers.NllbMoeConfig(), **arguments) is None
        for config in (transformers.NllbMoeConfig(), type("OfSomeone", (transformers.PreTrainedConfig,), {})(), None):
            assert tell_mask(2, 7, 7, config=config, **arguments).shape == (2, 1, 7, 7)


def test_a_model_that_has_the_name_of_another_is_not_taken_for_it():
    own = type("BloomConfig", (transformers.PreTrainedConfig,), {"__module__": "transformers_modules.of_someone"})
    assert told_by(tell_mask(2, 7, 7, config=own())).mask == Causal()
    with pytest.raises(UnsupportedError, match="got BloomModel"):
        tell_mask(2, 7, 7, config=transformers.BloomConfig())


def test_tracing_on_fake_tensors_makes_the_table():
    with FakeTensorMode():
        mask = tell_mask(2, 5, 7, q_offset=2, attention_mask=torch.ones(2, 7, dtype=torch.bool))
    assert mask.shape == (2, 1, 5, 7) and not isinstance(mask, ToldMask)


COMPILED = f"""
import torch, transformers
from headwise.integrations.transformers_backend import register
register()
torch.manual_seed(0)
torch.set_num_threads(1)
sizes = {GROUPED | {"num_hidden_layers": 1}}
config = transformers.MistralConfig(**{SIZES}, **sizes, sliding_window=3, attn_implementation="headwise")
model = transformers.MistralForCausalLM(config).eval()
inputs = {{"input_ids": torch.arange(22).reshape(2, 11) + 2, "attention_mask": torch.ones(2, 11, dtype=torch.long)}}
inputs["attention_mask"][0, :4] = 0
graphs = []


def note(graph, _):
    graphs.append(graph)
    return graph.forward


# a whole model is one graph
with torch.no_grad():
    compiled = torch.compile(model.model, backend=note, fullgraph=True)
    torch.testing.assert_close(compiled(**inputs, use_cache=False)[0], model.model(**inputs, use_cache=False)[0])
assert len(graphs) == 1

# tokens that generate draws with a compiled step, and how many graphs it needs
inputs |= {{"max_new_tokens": 5, "do_sample": False}}
expected = model.generate(**inputs)
graphs.clear()
compile_config = transformers.CompileConfig(backend=note, fullgraph=True, mode=None)
compile_config._compile_all_devices = True
assert torch.equal(model.generate(**inputs, cache_implementation="static", compile_config=compile_config), expected)
assert len(graphs) <= 2, len(graphs)  # the window's cache fills once

# compiled by the user: masks are made ahead of the graph, that of the text too
inputs["max_new_tokens"], expected = 2, expected[:, :-3]
forward = model.forward
model.forward = torch.compile(forward, backend="eager")
assert torch.equal(model.generate(**inputs, cache_implementation="static"), expected)
model.forward = forward
for layer in model.model.layers:
    layer.compile(backend="eager")
assert torch.equal(model.generate(**inputs), expected)
"""


def test_models_compile_whole_in_generate_and_layer_by_layer():
    # in an interpreter of its own: the type checks that the other tests run with cannot be compiled
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], check=True)


def test_nothing_is_warned_of():
    model = build("llama")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, NAME, input_ids=IDS, attention_mask=padding_mask("left"))
