"""What stands on top of a model, decided by the class that `architectures` in its config.json names."""

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.config.checks import shown
from headwise.config.keys import Keys
from headwise.config.model import OutputHead
from headwise.errors import ConfigError, UnknownArchitectureError

_SEQUENCE, _TOKEN, _ANSWER = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
_EVERY_HEAD = ("Model", "ForCausalLM", _SEQUENCE, _TOKEN, _ANSWER)
_NO_ANSWER = ("Model", "ForCausalLM", _SEQUENCE, _TOKEN)

# family: what the names of its classes begin with, and how they end
_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "bert": (
        "Bert",
        ("Model", "ForMaskedLM", "LMHeadModel", _SEQUENCE, "ForNextSentencePrediction", _TOKEN, _ANSWER),
    ),
    "roberta": ("Roberta", ("Model", "ForMaskedLM", "ForCausalLM", _SEQUENCE, _TOKEN, _ANSWER)),
    "xlm-roberta": ("XLMRoberta", ("Model", "ForMaskedLM", "ForCausalLM", _SEQUENCE, _TOKEN, _ANSWER)),
    "distilbert": ("DistilBert", ("Model", "ForMaskedLM", _SEQUENCE, _TOKEN, _ANSWER)),
    "vit": ("ViT", ("Model", "ForImageClassification")),
    "gpt2": ("GPT2", ("Model", "LMHeadModel", _SEQUENCE, _TOKEN, _ANSWER)),
    "gpt_neox": ("GPTNeoX", _EVERY_HEAD),
    "bloom": ("Bloom", _EVERY_HEAD),
    "falcon": ("Falcon", _EVERY_HEAD),
    "opt": ("OPT", ("Model", "ForCausalLM", _SEQUENCE, _ANSWER)),
    "llama": ("Llama", _EVERY_HEAD),
    "mistral": ("Mistral", _EVERY_HEAD),
    "mixtral": ("Mixtral", _EVERY_HEAD),
    "qwen2": ("Qwen2", _EVERY_HEAD),
    "qwen2_moe": ("Qwen2Moe", _EVERY_HEAD),
    "qwen3": ("Qwen3", _EVERY_HEAD),
    "qwen3_moe": ("Qwen3Moe", _EVERY_HEAD),
    "qwen3_next": ("Qwen3Next", _EVERY_HEAD),
    "gemma": ("Gemma", _NO_ANSWER),
    "gemma2": ("Gemma2", _NO_ANSWER),
    "gemma3_text": ("Gemma3", ("TextModel", "ForCausalLM", f"Text{_SEQUENCE}")),
    "gpt_oss": ("GptOss", _NO_ANSWER),
    "olmo2": ("Olmo2", ("Model", "ForCausalLM", _SEQUENCE)),
    "phi3": ("Phi3", _NO_ANSWER),
    "smollm3": ("SmolLM3", _EVERY_HEAD),
    "starcoder2": ("Starcoder2", _NO_ANSWER),
    "deepseek_v2": ("DeepseekV2", ("Model", "ForCausalLM", _SEQUENCE)),
    "deepseek_v3": ("DeepseekV3", _NO_ANSWER),
    "t5": ("T5", ("Model", "ForConditionalGeneration", "EncoderModel")),
    "bart": ("Bart", ("Model", "ForConditionalGeneration")),
}

CLASSES = {family: tuple(prefix + suffix for suffix in suffixes) for family, (prefix, suffixes) in _NAMES.items()}
"""Classes of transformers that can be read, per family: bare model, language model (of ViT, its classifier), others."""

MASKED = ("bert", "roberta", "xlm-roberta", "distilbert")
"""Families whose language model reads a masked text: it has a dense layer and a norm before the tied scores."""

_BARE_BY_DEFAULT = (*MASKED, "vit")  # an encoder is most likely wanted for its states, a decoder for its predictions
_POOLED = ("bert", "roberta", "xlm-roberta", "vit")  # whose bare model ends in a pooler
_TIED = (*MASKED, "gpt2", "gemma", "gemma2", "gemma3_text", "smollm3", "starcoder2", "bloom", "falcon", "opt", "bart")
_LANGUAGE_MODELS = ("ForCausalLM", "ForMaskedLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True, kw_only=True)
class Top:
    """What stands on the last hidden state: a pooler or not, and a head or None."""

    pooler: bool
    head: OutputHead | None


def read_top(
    config: Mapping[str, object],
    family: str,
    *,
    vocab_size: int,
    with_language_model: bool,
    hidden_dropout_p: float = 0.1,
    softcap: float | None = None,
) -> Top:
    """Read what the class of a config has on top.

    Args:
        config: the content of the config.json.
        family: its model_type, a key of `CLASSES`.
        vocab_size: rows of the token embedding, the outputs of a language model.
        with_language_model: read the bare model as the family's language model.
        hidden_dropout_p: dropout before a classifier where the config does not say.
        softcap: cap on a language model's scores.
    """
    class_name = class_of(config, family)
    bare, default = CLASSES[family][:2]
    if class_name == bare and with_language_model and family != "vit":
        class_name = default
    if class_name == bare or class_name.endswith("EncoderModel"):
        return Top(pooler=family in _POOLED, head=None)
    if class_name.endswith(_LANGUAGE_MODELS):
        return Top(pooler=False, head=_language_model(config, family, vocab_size, softcap))
    return _classifier(config, family, class_name, hidden_dropout_p)


def class_of(config: Mapping[str, object], family: str) -> str:
    """Return the first class in `architectures`, or what a config without one most likely is."""
    names = Keys(config, {"architectures": None}).texts("architectures")
    if not names:
        return CLASSES[family][0 if family in _BARE_BY_DEFAULT else 1]
    if names[0] not in CLASSES[family]:
        raise UnknownArchitectureError(
            f"class {shown(names[0])} in architectures cannot be read for model_type {family!r}; "
            f"it must be one of {', '.join(CLASSES[family])}"
        )
    return names[0]


def _language_model(config: Mapping[str, object], family: str, vocab_size: int, softcap: float | None) -> OutputHead:
    if family == "t5":  # transformers ties it whatever the file says
        return OutputHead(kind="language_model", num_outputs=vocab_size, tied=True)
    tied = Keys(config, {"tie_word_embeddings": family in _TIED}).flag("tie_word_embeddings")
    if family not in MASKED:
        return OutputHead(kind="language_model", num_outputs=vocab_size, tied=tied, softcap=softcap)
    if not tied:
        raise ConfigError(
            "a masked language-model head must share the token embedding's weight; "
            "got tie_word_embeddings false; only the tied head can be read"
        )
    return OutputHead(kind="language_model", num_outputs=vocab_size, tied=True, bias=True, transform=True)


def _classifier(config: Mapping[str, object], family: str, class_name: str, hidden_dropout_p: float) -> Top:
    keys = Keys(config, {"classifier_dropout": None})
    dropout_p = keys.probability("classifier_dropout", null=hidden_dropout_p)
    if class_name.endswith(_TOKEN):
        head = OutputHead(kind="classifier", num_outputs=_num_labels(config), bias=True, dropout_p=dropout_p)
        return Top(pooler=False, head=head)
    if class_name.endswith(_ANSWER):
        # A start and an end score; only BERT's relatives take the number from the config.
        num_outputs = _num_labels(config) if family in MASKED else 2
        drops = family == "distilbert"  # alone of them
        dropout_p = Keys(config, {"qa_dropout": 0.1}).probability("qa_dropout") if drops else 0.0
        head = OutputHead(kind="classifier", num_outputs=num_outputs, bias=True, dropout_p=dropout_p)
        return Top(pooler=False, head=head)
    if class_name == "BertForNextSentencePrediction":
        return Top(pooler=True, head=OutputHead(kind="classifier", num_outputs=2, per_token=False, bias=True))
    if class_name == "ViTForImageClassification":
        head = OutputHead(kind="classifier", num_outputs=_num_labels(config), per_token=False, bias=True)
        return Top(pooler=False, head=head)
    if (
        family in MASKED
    ):  # the dense layer on the first token is BERT's pooler, and as large where it is called otherwise
        head = OutputHead(
            kind="classifier", num_outputs=_num_labels(config), per_token=False, bias=True, dropout_p=dropout_p
        )
        return Top(pooler=True, head=head)
    # A decoder scores every token and keeps the scores of the last real one.
    return Top(pooler=False, head=OutputHead(kind="classifier", num_outputs=_num_labels(config)))


def _num_labels(config: Mapping[str, object]) -> int:
    if config.get("num_labels") is not None:
        return Keys(config, {"num_labels": 2}).size("num_labels")
    return len(Keys(config, {"id2label": None}).mapping("id2label")) or 2
