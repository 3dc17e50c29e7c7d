import itertools
import re
import time
import tracemalloc

import pytest
import torch
import transformers

from headwise.config.attention import ALiBi
from headwise.config.families import bart, bert, deepseek, gpt2, opt, parallel, qwen3_next, t5, vit
from headwise.config.families.decoders import DECODERS
from headwise.config.huggingface import FAMILIES, read_config
from headwise.config.model import MAX_LAYERS
from headwise.config.scaling import LinearScaling, YaRNScaling
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, Full, SlidingWindow

CONFIG_CLASSES = {family: transformers.CONFIG_MAPPING[family] for family in FAMILIES}
LIKE_LLAMA = tuple(DECODERS)
# Families whose every layer is alike, and which the first version of this reader knew.
PLAIN = ("bert", "gpt2", "llama", "mistral", "mixtral", "qwen3", "gemma")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "vit")
POOLED = ("bert", "roberta", "xlm-roberta", "vit")
BOTH = ("t5", "bart")
READ_KEYS = {
    "gpt2": gpt2.DEFAULTS,
    "qwen3_next": qwen3_next.DEFAULTS,
    "t5": t5.DEFAULTS,
    "bart": bart.DEFAULTS,
    "vit": vit.DEFAULTS,
    **{family: decoder.defaults for family, decoder in DECODERS.items()},
    **{family: defaults for module in (bert, deepseek, opt, parallel) for family, defaults in module.DEFAULTS.items()},
}
ONE_PER_READER = (
    *("bert", "distilbert", "gpt2", "llama", "gemma3_text", "qwen2_moe", "deepseek_v3", "qwen3_next"),
    *("gpt_neox", "falcon", "opt", "bloom", "t5", "bart", "vit"),
)
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6}
}  # what a file must say, since transformers has no use for its default

TINY_SIZES = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 13,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "pad_token_id": 0,
}
TINY_WITHOUT_HEAD_DIM = {key: size for key, size in TINY_SIZES.items() if key != "head_dim"}


def read(model_type: str, **settings):
    return read_config({"model_type": model_type, **NEEDED.get(model_type, {}), **settings}, name="m")


def test_the_families_of_the_documentation_are_read():
    assert set(FAMILIES) == {
        *("bert", "roberta", "xlm-roberta", "distilbert", "vit", "t5", "bart", "gpt2", "opt", "bloom", "gpt_neox"),
        *("falcon", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma"),
        *("gemma2", "gemma3_text", "gpt_oss", "olmo2", "phi3", "smollm3", "starcoder2", "deepseek_v2", "deepseek_v3"),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_without_keys_is_the_file_that_transformers_writes_of_its_defaults(family):
    written = CONFIG_CLASSES[family](**NEEDED.get(family, {})).to_dict()
    assert read(family) == read_config({**written, "model_type": family}, name="m")


def test_a_family_without_a_default_number_of_active_experts_must_name_it():
    with pytest.raises(ConfigError, match="num_experts_per_tok must be a whole number; got None"):
        read_config({"model_type": "deepseek_v2"}, name="m")


@pytest.mark.parametrize("family", PLAIN)
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
    for family in PLAIN:
        config = read(family)
        is_bert = family == "bert"
        assert config.kind == ("encoder" if is_bert else "decoder")
        assert {block.norm_placement for block in config.blocks} == {"post" if is_bert else "pre"}
        assert (config.embedding_norm, config.final_norm) == (is_bert, not is_bert)
        assert config.blocks[0].norm == ("layernorm" if family in ("bert", "gpt2") else "rmsnorm")
        assert config.position_table_size == {"bert": 512, "gpt2": 1024}.get(family, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_class_an_encoder_is_bare_and_all_others_are_language_models(family):
    config = read(family)
    assert config.kind == ("encoder" if family in ENCODERS else "encoder-decoder" if family in BOTH else "decoder")
    assert config.pooler == (family in POOLED)
    if family in ENCODERS:
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
        ("DistilBertForTokenClassification", {"dropout": 0.25}),
        ("DistilBertForSequenceClassification", {"dropout": 0.25, "seq_classif_dropout": 0.5}),
        ("DistilBertForQuestionAnswering", {"qa_dropout": 0.25}),
        ("GPTNeoXForTokenClassification", {}),
        ("GPTNeoXForTokenClassification", {"classifier_dropout": 0.5}),
        ("BloomForTokenClassification", {"hidden_dropout": 0.25}),
        ("FalconForTokenClassification", {"hidden_dropout": 0.25}),
    ],
)
def test_a_classifier_drops_out_as_its_module_does(class_name, settings):
    model_class = getattr(transformers, class_name)
    sizes = TINY_WITHOUT_HEAD_DIM | ({"hidden_size": 24} if class_name.startswith(("GPTNeoX", "Falcon")) else {})
    theirs = model_class.config_class(**sizes, **settings)
    head = read(theirs.model_type, architectures=[class_name], **sizes, **settings).head
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


ROPE_TYPE_OF = {type(None): "default", LinearScaling: "linear", YaRNScaling: "yarn"}
LINEAR, YARN_OF_4096 = LinearScaling(factor=2.0), YaRNScaling(factor=4.0, original_max_positions=4096)


@pytest.mark.parametrize(
    ("settings", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7000}}, 7000, None),
        ({"rope_parameters": {"rope_theta": 7000}, "rope_theta": 5e5}, 7000, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5}, 5e5, LINEAR),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 5e5}, 5e5, YARN_OF_4096),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7000}}, 1e4, LINEAR),
        ({"rope_scaling": None, "rope_parameters": None}, 1e4, None),
    ],
)
def test_rotary_settings_are_those_that_transformers_takes(settings, theta, scaling):
    settings = {**settings, "max_position_embeddings": 4096}
    ours = read("llama", **settings).blocks[0].attention.position
    theirs = transformers.LlamaConfig(**settings).rope_parameters
    assert (ours.theta, ours.scaling) == (theta, scaling)
    assert (ours.theta, ROPE_TYPE_OF[type(ours.scaling)]) == (theirs["rope_theta"], theirs["rope_type"])
    assert getattr(ours.scaling, "factor", None) == theirs.get("factor")
    original = getattr(ours.scaling, "original_max_positions", None)
    assert original == theirs.get("original_max_position_embeddings")


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
        ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 3}),
        ("qwen3_moe", {"use_sliding_window": False, "sliding_window": 3}),
        ("gemma2", {"sliding_window": 3}),
        ("gemma3_text", {"sliding_window": 3}),
        ("gemma3_text", {"sliding_window": 3, "sliding_window_pattern": 2}),
        ("gpt_oss", {"sliding_window": 3}),
        ("phi3", {"sliding_window": 3}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 3, "no_rope_layer_interval": 2}),
        ("starcoder2", {"sliding_window": 2}),
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


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt_neox", {"hidden_size": 48, "rotary_pct": 0.25}),
        ("gpt_neox", {"hidden_size": 48, "rope_parameters": {"partial_rotary_factor": 0.5}}),
        ("phi3", {"head_dim": 8, "partial_rotary_factor": 0.75}),
        ("qwen3_next", {"head_dim": 16, "num_hidden_layers": 4}),
        ("llama", {"partial_rotary_factor": 0.5}),
    ],
)
def test_as_much_of_a_head_is_turned_as_transformers_turns(family, settings):
    sizes = TINY_WITHOUT_HEAD_DIM | settings
    module = transformers.AutoModel.from_config(CONFIG_CLASSES[family](**sizes))
    attention = read(family, **sizes).blocks[-1].attention
    assert (attention.position.rotary_dim or attention.head_dim) == 2 * len(module.rotary_emb.inv_freq)


YARN = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gemma2", {"query_pre_attn_scalar": 7}),
        ("gemma3_text", {"query_pre_attn_scalar": 5}),
        ("gpt_oss", {}),
        ("deepseek_v3", {"num_key_value_heads": 3}),
        ("deepseek_v3", {"num_key_value_heads": 3, "rope_scaling": YARN, "max_position_embeddings": 163_840}),
        ("deepseek_v2", {"num_key_value_heads": 3, "rope_scaling": {**YARN, "mscale_all_dim": 0.5}}),
        ("t5", {}),
    ],
)
def test_scores_are_scaled_as_transformers_scales_them(family, settings):
    sizes = {} if family == "t5" else TINY_SIZES
    theirs = CONFIG_CLASSES[family](**{**sizes, **settings})
    module = transformers.AutoModel.from_config(theirs)
    (scaling,) = {layer.scaling for layer in module.modules() if hasattr(layer, "scaling")}
    assert read(family, **{**sizes, **settings}).blocks[0].attention.scale == pytest.approx(scaling, rel=1e-15)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ((1e4, None), (1e6, None))),
        ({"rope_theta": 5e5, "rope_local_base_freq": 2e4}, ((2e4, None), (5e5, None))),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, ((1e4, None), (1e6, LinearScaling(factor=8.0)))),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}}, ((7.0, None), (1e6, None))),
    ],
)
def test_gemma_3_turns_each_kind_of_layer_by_its_own_base_as_transformers_does(settings, expected):
    blocks = read("gemma3_text", **settings).blocks
    found = [(blocks[index].attention.position.theta, blocks[index].attention.position.scaling) for index in (0, 5)]
    theirs = transformers.Gemma3TextConfig(**settings).rope_parameters
    assert tuple(found) == expected
    for kind, (theta, scaling) in zip(("sliding_attention", "full_attention"), found, strict=True):
        assert (theirs[kind]["rope_theta"], theirs[kind]["rope_type"]) == (theta, ROPE_TYPE_OF[type(scaling)])


def test_smollm3_leaves_every_fourth_layer_without_positions():
    positions = [block.attention.position for block in read("smollm3").blocks]
    assert [position is None for position in positions] == [False, False, False, True] * 9


def test_a_t5_owns_one_table_of_biases_a_stack():
    config = read("t5", num_layers=3, num_decoder_layers=2)
    stacks = {"encoder": config.encoder.blocks, "decoder": config.blocks}
    owners = {name: [block.attention.position.owns_table for block in blocks] for name, blocks in stacks.items()}
    assert owners == {"encoder": [True, False, False], "decoder": [True, False]}
    assert [block.attention.position.is_bidirectional for block in (stacks["encoder"][0], stacks["decoder"][0])] == [
        1,
        0,
    ]
    assert read("t5", architectures=["T5EncoderModel"], num_layers=3).encoder is None


def test_falcon_reads_its_three_layouts():
    old = read("falcon").blocks[0]
    assert (old.attention.num_kv_heads, old.parallel, old.shared_norm) == (1, True, True)
    new = read(
        "falcon", new_decoder_architecture=True, num_attention_heads=64, num_kv_heads=8, hidden_size=4096
    ).blocks[0]
    assert (new.attention.num_kv_heads, new.parallel, new.shared_norm) == (8, True, False)
    sequential = read("falcon", parallel_attn=False, multi_query=False, alibi=True).blocks[0]
    assert (sequential.attention.num_kv_heads, sequential.parallel, sequential.shared_norm) == (71, False, False)
    assert sequential.attention.position == ALiBi()


def test_layers_with_and_without_a_window_each_share_one_block():
    config = read("qwen3", num_hidden_layers=5, use_sliding_window=True, sliding_window=7, max_window_layers=2)
    assert [block.attention.mask for block in config.blocks] == [Causal()] * 2 + [SlidingWindow(7)] * 3
    assert [count for _, count in config.block_groups] == [2, 3]
    assert read("bert").blocks[0].attention.mask == Full()


@pytest.mark.parametrize("family", ONE_PER_READER)
def test_ten_thousand_layers_cost_nothing(family):
    key = "num_layers" if family == "t5" else "num_hidden_layers"
    tracemalloc.start()
    config = read(family, **{key: MAX_LAYERS})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len((config.encoder or config).blocks) == MAX_LAYERS
    assert len(config.block_groups) <= 2
    assert peak < 2**21


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
    ("llama", {"is_causal": False}, "is_causal must be true or left out, since llama is read with causal masks; got f"),
    ("gpt2", {"is_causal": False}, "is_causal must be true or left out, since gpt2 is read with causal masks; got f"),
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
    ("roberta", {"max_position_embeddings": 2}, "pad_token_id must be between 0 and 0; got 1"),
    ("gemma2", {"sliding_window": None}, "layer_types asks for sliding_attention.* sliding_window given"),
    ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers must be a list of whole numbers; got 3"),
    ("qwen3_moe", {"mlp_only_layers": [-1]}, "a number in mlp_only_layers must be between 0 and .*; got -1"),
    ("deepseek_v3", {"num_key_value_heads": 64}, "num_key_value_heads must equal num_attention_heads.*got 64 and 128"),
    ("deepseek_v3", {"qk_rope_head_dim": 3}, "qk_rope_head_dim must be even, since pairs are turned; got 3"),
    ("deepseek_v3", {"first_k_dense_replace": None}, "first_k_dense_replace must be a whole number; got None"),
    ("qwen3_next", {"layer_types": ["sliding_attention"] * 48}, "must hold full_attention or linear_attention; got"),
    ("qwen3_next", {"head_dim": 4}, "the rotary part of a head must be even.*got 0.25 of 4 = 1"),
    ("gpt_neox", {"rotary_pct": 1.5}, "partial_rotary_factor must be above 0 and at most 1; got 1.5"),
    ("opt", {"word_embed_proj_dim": 512}, "word_embed_proj_dim must equal hidden_size; got 512 and 768"),
    ("opt", {"layer_norm_elementwise_affine": False}, "norms without weights cannot be read"),
    (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 8},
        "must be a multiple of num_kv_heads; got 71 and 8",
    ),
    ("t5", {"feed_forward_proj": "gated-gelu-x"}, 'feed_forward_proj must be an activation, with "gated-" before it'),
    ("bart", {"tie_word_embeddings": False}, "the token table must be one for encoder, decoder and head"),
    ("vit", {"image_size": [224, 192]}, r"image_size must be square, both sides equal; got \[224, 192\]"),
    ("vit", {"patch_size": 225}, "patch_size must not exceed image_size; got 225 and 224"),
    ("vit", {"qkv_bias": False}, "got qkv_bias false"),
    ("vit", {"pooler_output_size": 5}, "pooler_output_size must equal hidden_size; got 5 and 768"),
    ("vit", {"image_size": 10**9}, "image_size must be between 1 and 32768; got 1000000000"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must have a number for each of the 36 layers; got 1"),
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
        ({}, "model_type must be one of bert, roberta, .*, t5, bart, vit; it is missing"),
        ({"model_type": "mamba"}, "model_type must be one of .*; got 'mamba'"),
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


# few layers, so that many files are read quickly
SHALLOW = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2
)

OLDER_KEYS = ("rope_scaling", "rope_theta", "torch_dtype", "num_labels", "architectures", "per_layer_config")


@pytest.mark.parametrize("family", FAMILIES)
def test_any_value_for_any_key_ends_in_a_config_or_in_one_short_line_at_once(family):
    keys = {*READ_KEYS[family], *OLDER_KEYS, *CONFIG_CLASSES[family].attribute_map}
    shallow = {key: value for key, value in SHALLOW.items() if key in READ_KEYS[family]}
    started = time.perf_counter()
    for key in keys:
        for junk in JUNK:
            try:
                read(family, **{**shallow, key: junk})
            except ConfigError as error:
                text = str(error)
                assert "\n" not in text
                assert len(text) < 700, text
                assert set(OUR_WORDS.findall(text)) <= keys, text
    assert time.perf_counter() - started < 20


ROPE_KEYS = ("rope_type", "type", "factor", "mscale_all_dim", "rope_theta", "partial_rotary_factor")


@pytest.mark.parametrize("family", [family for family in FAMILIES if "rope_parameters" in READ_KEYS[family]])
def test_any_value_inside_the_rotary_settings_ends_in_a_config_or_in_one_short_line(family):
    shallow = {key: value for key, value in SHALLOW.items() if key in READ_KEYS[family]}
    for outer in ("rope_scaling", "rope_parameters"):
        for inner in ROPE_KEYS:
            for junk in (*JUNK, 1e300, -1e300, 1e308, "yarn"):
                settings = {"rope_type": "yarn", "factor": 40, "mscale_all_dim": 0.7, inner: junk}
                try:
                    read(family, **{**shallow, outer: settings})
                except ConfigError as error:
                    assert "\n" not in str(error) and len(str(error)) < 700, error


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "deepseek_v3"])
def test_a_base_of_zero_is_refused_and_not_taken_for_a_missing_one(family):
    with pytest.raises(ConfigError, match="rope_theta must be positive; got 0"):
        read(family, rope_parameters={"rope_type": "default", "rope_theta": 0})


def test_a_stretch_beyond_all_measure_is_refused():
    settings = {"rope_type": "yarn", "factor": 40, "mscale_all_dim": 1e300}
    with pytest.raises(ConfigError, match=r"mscale_all_dim must be between 0 and 1000; got 1e\+300"):
        read("deepseek_v3", rope_scaling=settings)


# fields of our configs that no config.json has under the same name, but for "head_dim" and "num_experts" of Mixtral
OUR_WORDS = re.compile(
    r"\b(embed_dim|num_heads|num_kv_heads|v_head_dim|hidden_dim|activation|norm_eps|qk_norm_eps|dropout_p|theta|scaling|"
    r"original_max_positions|short_factors|long_factors|share|"
    r"num_active_experts|num_outputs|max_positions|position_table_size|num_token_types|number of layers)\b"
)


@pytest.mark.parametrize("family", ONE_PER_READER)
def test_sizes_that_contradict_one_another_are_told_in_the_words_of_the_file(family):
    sizes = [key for key, value in READ_KEYS[family].items() if isinstance(value, int) and not isinstance(value, bool)]
    shallow = {key: value for key, value in SHALLOW.items() if key in READ_KEYS[family]}
    refused = 0
    for first, second in itertools.combinations(sizes, 2):
        for one, other in ((1, 7), (7, 1), (10**9, 3)):
            try:
                read(family, **{**shallow, first: one, second: other})
            except ConfigError as error:
                refused += 1
                assert set(OUR_WORDS.findall(str(error))) <= set(READ_KEYS[family]), error
    assert refused


def test_every_norm_of_a_family_has_the_epsilon_of_the_file():
    block = read("qwen3", rms_norm_eps=1e-5).blocks[0]
    assert (block.norm_eps, block.attention.qk_norm_eps) == (1e-5, 1e-5)


def test_the_defaults_name_no_key_that_transformers_has_dropped():
    # old spellings that transformers still reads, though its own config objects do not store them
    old = {"rope_scaling", "rope_theta", "torch_dtype", "partial_rotary_factor", "rotary_emb_base", "rotary_pct"}
    old |= {"rope_local_base_freq", "sliding_window_pattern", "full_attention_interval", "n_positions", "seq_length"}
    old |= {"head_dim", "num_key_value_heads", "position_embedding_type"}
    # written under another name, as `attribute_map` has it
    old |= {"num_experts", "n_routed_experts"}
    for family, defaults in READ_KEYS.items():
        assert set(defaults) - old <= set(CONFIG_CLASSES[family]().to_dict()), family


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_reader_has_no_key_for_changes_nothing(family):
    known = {*READ_KEYS[family], *CONFIG_CLASSES[family].attribute_map, "architectures", "num_labels", "id2label"}
    known |= {
        "dtype",
        "torch_dtype",
        "tie_word_embeddings",
        "model_type",
        "n_embed",
        "num_local_experts",
        "num_experts",
    }
    others = {key: 3 for key in CONFIG_CLASSES[family]().to_dict() if key not in known}
    assert len(others) > 5
    assert read(family, **others) == read(family)
