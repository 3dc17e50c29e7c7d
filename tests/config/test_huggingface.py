import itertools
import re
import time
import tracemalloc

import pytest
import torch
import transformers

from headwise.config.families.llama import DEFAULTS
from headwise.config.huggingface import FAMILIES, read_config
from headwise.config.model import MAX_LAYERS
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Full, SlidingWindow

CONFIG_CLASSES = {
    "bert": transformers.BertConfig,
    "gpt2": transformers.GPT2Config,
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "mixtral": transformers.MixtralConfig,
    "qwen3": transformers.Qwen3Config,
    "gemma": transformers.GemmaConfig,
}

TINY_SIZES = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 13,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 4,
}


def read(model_type: str, **settings):
    return read_config({"model_type": model_type, **settings}, name="m")


def test_every_family_that_the_oracle_knows_is_read():
    assert set(FAMILIES) == set(CONFIG_CLASSES)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_keys_mean_what_transformers_takes_them_for(family):
    ours, theirs = read(family), CONFIG_CLASSES[family]()
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.embed_dim == theirs.hidden_size
    assert ours.vocab_size == theirs.vocab_size
    assert ours.max_positions == theirs.max_position_embeddings
    block = ours.blocks[0]
    assert block.attention.num_heads == theirs.num_attention_heads
    assert block.attention.num_kv_heads == getattr(theirs, "num_key_value_heads", theirs.num_attention_heads)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert block.attention.head_dim == head_dim
    assert bool(block.attention.projection_bias) == getattr(theirs, "attention_bias", family in ("bert", "gpt2"))
    inner = getattr(theirs, "intermediate_size", None) or 4 * theirs.hidden_size
    assert block.feed_forward.hidden_dim == inner
    assert block.feed_forward.activation == getattr(theirs, "hidden_act", None) or theirs.activation_function
    assert block.feed_forward.num_experts == getattr(theirs, "num_local_experts", 1)
    assert block.feed_forward.num_active_experts == getattr(theirs, "num_experts_per_tok", 1)
    eps = [value for key, value in theirs.to_dict().items() if re.fullmatch("(layer|rms)_norm_eps(ilon)?", key)]
    assert [block.norm_eps] == eps
    if family not in ("bert", "gpt2"):
        rope = theirs.rope_parameters
        assert (block.attention.position.theta, rope["rope_type"]) == (rope["rope_theta"], "default")
        assert block.attention.position.scaling is None
        assert block.attention.dropout_p == theirs.attention_dropout
        assert block.dropout_p == 0


def test_dropout_stands_where_each_family_has_it():
    bert = read("bert", hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.5)
    assert (bert.embedding_dropout_p, bert.blocks[0].dropout_p) == (0.25, 0.25)
    assert bert.blocks[0].attention.dropout_p == 0.5
    gpt2 = read("gpt2", resid_pdrop=0.125, embd_pdrop=0.25, attn_pdrop=0.5)
    assert (gpt2.embedding_dropout_p, gpt2.blocks[0].dropout_p) == (0.25, 0.125)
    assert gpt2.blocks[0].attention.dropout_p == 0.5
    assert read("llama", attention_dropout=None).blocks[0].attention.dropout_p == 0


def test_bert_is_a_post_norm_encoder_and_the_others_are_pre_norm_decoders():
    for family in FAMILIES:
        config = read(family)
        is_bert = family == "bert"
        assert config.kind == ("encoder" if is_bert else "decoder")
        assert {block.norm_placement for block in config.blocks} == {"post" if is_bert else "pre"}
        assert (config.embedding_norm, config.final_norm) == (is_bert, not is_bert)
        assert config.blocks[0].norm == ("layernorm" if family in ("bert", "gpt2") else "rmsnorm")
        assert config.position_table_size == {"bert": 512, "gpt2": 1024}.get(family, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_class_bert_is_a_pooled_encoder_and_a_decoder_a_language_model(family):
    config = read(family)
    assert config.pooler == (family == "bert")
    if family == "bert":
        assert config.head is None
    else:
        assert config.head.kind == "language_model"
        assert config.head.tied == CONFIG_CLASSES[family]().tie_word_embeddings


@pytest.mark.parametrize(
    ("family", "bare"), [("bert", "BertModel"), ("gpt2", "GPT2Model"), ("qwen3", "Qwen3Model"), ("gemma", "GemmaModel")]
)
def test_a_language_model_head_can_be_asked_for(family, bare):
    config = {"model_type": family, "architectures": [bare]}
    assert read_config(config, name="m").head is None
    headed = read_config(config, name="m", head=True)
    assert headed.head.kind == "language_model"
    assert not headed.pooler


def test_asking_for_a_head_leaves_another_one_in_place():
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    assert read_config(config, name="m", head=True) == read_config(config, name="m")


@pytest.mark.parametrize(
    "settings",
    [{}, {"id2label": {"0": "a", "1": "b", "2": "c"}}, {"num_labels": 5}, {"num_labels": 5, "id2label": {"0": "a"}}],
)
def test_a_classifier_has_as_many_labels_as_transformers_takes_them_for(settings):
    head = read("bert", architectures=["BertForTokenClassification"], **settings).head
    assert head.num_outputs == transformers.BertConfig(**settings).num_labels


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [
        ("BertForSequenceClassification", {"hidden_dropout_prob": 0.25}),
        ("BertForSequenceClassification", {"hidden_dropout_prob": 0.25, "classifier_dropout": 0.5}),
        ("LlamaForTokenClassification", {}),
        ("LlamaForTokenClassification", {"classifier_dropout": 0.5}),
    ],
)
def test_a_classifier_drops_out_as_its_module_does(class_name, settings):
    model_class = getattr(transformers, class_name)
    theirs = model_class.config_class(**TINY_SIZES, **settings)
    head = read(theirs.model_type, architectures=[class_name], **TINY_SIZES, **settings).head
    assert head.dropout_p == model_class(theirs).dropout.p


def test_null_head_dim_means_the_familys_own():
    assert read("llama", hidden_size=30, num_attention_heads=5, head_dim=None).blocks[0].attention.head_dim == 6
    assert read("qwen3", hidden_size=3200, head_dim=None).blocks[0].attention.head_dim == 128
    assert read("gemma", head_dim=None).blocks[0].attention.head_dim == 256


def test_null_kv_heads_mean_as_many_as_query_heads():
    assert read("llama", num_key_value_heads=None).blocks[0].attention.num_kv_heads == 32


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_stored_dtype_is_read_under_both_names(key):
    assert read("llama", **{key: "float16"}).dtype == "float16"
    assert read("llama", dtype="bfloat16", torch_dtype="float16").dtype == "bfloat16"
    assert read("llama").dtype is None


@pytest.mark.parametrize(
    ("settings", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7000}}, 7000, None),
        ({"rope_parameters": {"rope_theta": 7000}, "rope_theta": 5e5}, 7000, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5}, 5e5, "linear"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 5e5}, 5e5, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7000}}, 1e4, "linear"),
        ({"rope_scaling": None, "rope_parameters": None}, 1e4, None),
    ],
)
def test_rotary_settings_are_those_that_transformers_takes(settings, theta, scaling):
    ours = read("llama", **settings).blocks[0].attention.position
    theirs = transformers.LlamaConfig(**{**settings, "max_position_embeddings": 4096}).rope_parameters
    assert (ours.theta, ours.scaling) == (theta, scaling)
    assert (ours.theta, ours.scaling or "default") == (theirs["rope_theta"], theirs["rope_type"])


def test_gpt2_scales_its_scores_by_head_size_and_layer_as_asked():
    def scales(**settings):
        return [block.attention.scale for block in read("gpt2", n_embd=32, n_head=2, n_layer=3, **settings).blocks]

    assert scales() == [0.25] * 3
    assert scales(scale_attn_weights=False) == [1.0] * 3
    assert scales(scale_attn_by_inverse_layer_idx=True) == [0.25, 0.125, 0.25 / 3]


def test_gpt2_reads_the_common_spelling_of_its_keys_as_transformers_does():
    settings = {"n_embd": 8, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2}
    ours, theirs = read("gpt2", **settings), transformers.GPT2Config(**settings)
    assert (ours.embed_dim, ours.num_layers) == (theirs.n_embd, theirs.n_layer) == (16, 2)


def test_gemma_means_the_tanh_form_where_it_says_gelu():
    assert read("gemma", hidden_act="gelu").blocks[0].feed_forward.activation == "gelu_pytorch_tanh"
    assert read("llama", hidden_act="gelu").blocks[0].feed_forward.activation == "gelu"


def test_keys_that_a_family_does_not_have_do_nothing():
    assert read("mistral", attention_bias=True, mlp_bias=True) == read("mistral")
    assert read("llama", sliding_window=4, layer_types=["sliding_attention"]) == read("llama")


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("mistral", {"sliding_window": 3}),
        ("mistral", {"sliding_window": None}),
        ("mixtral", {"sliding_window": 2}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1}),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 2,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
        ),
        ("llama", {}),
        ("gpt2", {"n_embd": 12, "n_head": 3, "n_layer": 3}),
        ("bert", {}),
    ],
)
def test_every_layers_mask_allows_the_pairs_that_transformers_gives_weight(family, settings):
    sizes = {"vocab_size": 11} if family == "gpt2" else TINY_SIZES
    theirs = CONFIG_CLASSES[family](
        **{**sizes, **settings, "attn_implementation": "eager", "experts_implementation": "eager"}
    )
    model = transformers.AutoModel.from_config(theirs).eval()
    ours = read(family, **sizes, **settings)
    with torch.no_grad():
        weights = model(torch.zeros(1, 7, dtype=torch.long), output_attentions=True).attentions
    for block, layer_weights in zip(ours.blocks, weights, strict=True):
        for query in range(7):
            allowed = [bool(block.attention.mask.allows(0, 0, query, key)) for key in range(7)]
            assert allowed == (layer_weights[0, 0, query] > 0).tolist()


def test_layers_with_and_without_a_window_each_share_one_block():
    config = read("qwen3", num_hidden_layers=5, use_sliding_window=True, sliding_window=7, max_window_layers=2)
    assert [block.attention.mask for block in config.blocks] == [Causal()] * 2 + [SlidingWindow(7)] * 3
    assert [count for _, count in config.block_groups] == [2, 3]
    assert read("bert").blocks[0].attention.mask == Full()


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_thousand_layers_cost_nothing(family):
    key = "n_layer" if family == "gpt2" else "num_hidden_layers"
    tracemalloc.start()
    config = read(family, **{key: MAX_LAYERS})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert config.num_layers == MAX_LAYERS
    assert len(config.block_groups) == 1
    assert peak < 2**20


REFUSED = [
    ("bert", {"architectures": ["BertForPreTraining"]}, "class 'BertForPreTraining' in architectures cannot be read"),
    ("llama", {"architectures": ["MistralForCausalLM"]}, "'MistralForCausalLM'.*must be one of LlamaModel"),
    ("gemma", {"architectures": ["GemmaForQuestionAnswering"]}, "cannot be read"),
    ("llama", {"architectures": "LlamaModel"}, "architectures must be a list of strings"),
    ("llama", {"architectures": [1]}, "architectures must be a list of strings"),
    ("bert", {"is_decoder": True}, "BERT as a decoder cannot be read.*is_decoder true"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention true"),
    ("bert", {"position_embedding_type": "relative_key"}, "must be \"absolute\".*got 'relative_key'"),
    ("bert", {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False}, "tie_word_embeddings false"),
    ("gpt2", {"add_cross_attention": True}, "cross-attention cannot be read"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention true"),
    ("llama", {"per_layer_config": {"0": {}}}, "got per_layer_config"),
    ("bert", {"hidden_size": "768"}, "hidden_size must be a whole number; got '768'"),
    ("bert", {"hidden_size": None}, "hidden_size must be a whole number; got None"),
    ("bert", {"hidden_size": 768.0}, "hidden_size must be a whole number; got 768.0"),
    ("bert", {"vocab_size": True}, "vocab_size must be a whole number; got True"),
    ("bert", {"vocab_size": 0}, "vocab_size must be between 1 and"),
    ("bert", {"intermediate_size": -3072}, "intermediate_size must be between 1 .*; got -3072"),
    (
        "bert",
        {"hidden_size": 100, "num_attention_heads": 12},
        "hidden_size must be a multiple of num_attention_heads; got 100 and 12$",
    ),
    ("gpt2", {"n_embd": 100}, "n_embd must be a multiple of n_head; got 100 and 12$"),
    ("gpt2", {"hidden_size": 100}, "hidden_size must be a multiple of n_head; got 100 and 12$"),
    ("gpt2", {"num_attention_heads": 7}, "n_embd must be a multiple of num_attention_heads; got 768 and 7$"),
    ("gpt2", {"n_embd": 10**9, "n_head": 8}, "n_embd must be between 1 and 536870911; got 1000000000"),
    ("gpt2", {"num_hidden_layers": 0}, "num_hidden_layers must be between 1 and 10000; got 0"),
    (
        "llama",
        {"hidden_size": 100},
        r"hidden_size must be a multiple of num_attention_heads; got 100 and 32 \(or give head_dim\)",
    ),
    (
        "llama",
        {"num_key_value_heads": 5},
        "num_attention_heads must be a multiple of num_key_value_heads; got 32 and 5$",
    ),
    ("bert", {"layer_norm_eps": -1}, "layer_norm_eps must be positive; got -1"),
    ("gpt2", {"layer_norm_epsilon": 0}, "layer_norm_epsilon must be positive; got 0"),
    ("qwen3", {"rms_norm_eps": -1e-6}, "rms_norm_eps must be positive; got -1e-06"),
    ("bert", {"hidden_act": ""}, "hidden_act must not be empty"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers must be between 1 and 10000; got 1000000000"),
    ("gpt2", {"n_layer": 10**9}, "n_layer must be between 1 and 10000"),
    ("llama", {"hidden_size": 10**5000}, "hidden_size must be between .*thousands of digits"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number; got nan"),
    ("llama", {"attention_dropout": 1.5}, "attention_dropout must be at least 0 and below 1; got 1.5"),
    ("llama", {"attention_bias": "yes"}, "attention_bias must be true or false; got 'yes'"),
    ("llama", {"hidden_act": 3}, "hidden_act must be a string; got 3"),
    ("llama", {"dtype": "float7"}, "dtype must be one of .*; got 'float7'"),
    ("llama", {"torch_dtype": 16}, "torch_dtype must be a string; got 16"),
    ("bert", {"torch_dtype": "float7"}, "torch_dtype must be one of .*; got 'float7'"),
    ("llama", {"rope_scaling": "yarn"}, "rope_scaling must be an object with keys; got 'yarn'"),
    ("llama", {"rope_scaling": {"type": "spiral"}}, "type in rope_scaling must be one of .*; got 'spiral'"),
    ("llama", {"rope_parameters": {"rope_theta": -1}}, "rope_theta must be positive; got -1"),
    ("llama", {"rope_theta": 0}, "rope_theta must be positive; got 0"),
    ("llama", {"rope_parameters": {"full_attention": {}}}, "rope_parameters must be one set of values for all layers"),
    ("llama", {"rope_scaling": {"full_attention": {}}}, "rope_scaling must be one set of values for all layers"),
    ("llama", {"rope_parameters": {"rope_type": 3}}, "rope_type in rope_parameters must be one of .*; got 3"),
    ("llama", {"head_dim": 5}, "head_dim must be even for rotary.*; got 5"),
    (
        "llama",
        {"hidden_size": 96},
        "head_dim must be even .*; it is missing, and hidden_size / num_attention_heads is 96 / 32 = 3",
    ),
    ("mistral", {"sliding_window": 0}, "sliding_window must be between 1"),
    ("mixtral", {"num_local_experts": 1}, "num_local_experts must be between 2"),
    ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok must be between 1 and 8; got 9"),
    ("qwen3", {"layer_types": ["full_attention"] * 31}, "layer_types must name each of the 32 layers; got 31"),
    ("qwen3", {"num_hidden_layers": 1, "layer_types": ["linear"]}, "layer_types must hold .*; got 'linear'"),
    ("qwen3", {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, "use_sliding_window must be true"),
    ("qwen3", {"layer_types": 3}, "layer_types must be a list of strings; got 3"),
    ("bert", {"architectures": ["BertForTokenClassification"], "num_labels": -1}, "num_labels must be between 1"),
    ("bert", {"architectures": ["BertForTokenClassification"], "id2label": 7}, "id2label must be an object"),
]


@pytest.mark.parametrize(("family", "settings", "text"), REFUSED)
def test_a_config_that_cannot_be_is_refused_with_its_key(family, settings, text):
    with pytest.raises(ConfigError, match=f"^m: .*{text}"):
        read(family, **settings)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (["bert"], r"a config must be an object with keys; got \['bert'\]"),
        (None, "a config must be an object with keys; got None"),
        ("bert", "a config must be an object with keys"),
        ({}, "model_type must be one of bert, gpt2, llama, mistral, mixtral, qwen3, gemma; it is missing"),
        ({"model_type": "t5"}, "model_type must be one of .*; got 't5'"),
        ({"model_type": ["bert"]}, "model_type must be one of"),
        ({"model_type": {"bert": "bert"}}, "model_type must be one of"),
    ],
)
def test_what_is_no_config_of_a_known_family_is_refused(config, text):
    with pytest.raises(ConfigError, match=text):
        read_config(config, name="m")


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


JUNK = [
    None,
    True,
    -1,
    0,
    3,
    10**12,
    10**5000,
    2.5,
    float("nan"),
    float("inf"),
    "",
    "7",
    "x\ny",
    [],
    [1],
    {},
    nested(400),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_any_value_for_any_key_ends_in_a_config_or_in_one_short_line_at_once(family):
    keys = [
        *CONFIG_CLASSES[family]().to_dict(),
        "rope_scaling",
        "rope_theta",
        "torch_dtype",
        "num_labels",
        "architectures",
    ]
    started = time.perf_counter()
    for key in keys:
        for junk in JUNK:
            try:
                read_config({"model_type": family, key: junk}, name="m")
            except ConfigError as error:
                text = str(error)
                assert "\n" not in text
                assert len(text) < 700, text
                assert not OUR_WORDS.search(text), text
    assert time.perf_counter() - started < 20


# fields of our configs that no config.json has under the same name, but for "head_dim" and "num_experts" of Mixtral
OUR_WORDS = re.compile(
    r"\b(embed_dim|num_heads|num_kv_heads|v_head_dim|hidden_dim|activation|norm_eps|qk_norm_eps|dropout_p|theta|scaling|"
    r"num_active_experts|num_outputs|max_positions|position_table_size|num_token_types|number of layers)\b"
)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_contradict_one_another_are_told_in_the_words_of_the_file(family):
    defaults = {key: value for key, value in CONFIG_CLASSES[family]().to_dict().items() if isinstance(value, int)}
    sizes = [key for key in defaults if not isinstance(defaults[key], bool)]
    refused = 0
    for first, second in itertools.combinations(sizes, 2):
        for one, other in ((1, 7), (7, 1), (10**9, 3), (3, 10**9), (12, 12)):
            try:
                read_config({"model_type": family, first: one, second: other}, name="m")
            except ConfigError as error:
                refused += 1
                assert not OUR_WORDS.search(str(error)), error
    assert refused > 10


def test_every_norm_of_a_family_has_the_epsilon_of_the_file():
    block = read("qwen3", rms_norm_eps=1e-5).blocks[0]
    assert (block.norm_eps, block.attention.qk_norm_eps) == (1e-5, 1e-5)


def test_the_defaults_name_no_key_that_transformers_has_dropped():
    # old spellings that transformers still reads, though its own config objects do not store them
    old = {"rope_scaling", "rope_theta", "torch_dtype"}
    for family, defaults in DEFAULTS.items():
        assert set(defaults) - old <= set(CONFIG_CLASSES[family]().to_dict())
