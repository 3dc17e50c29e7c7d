"""What stands on top of a model, decided by the class that `architectures` in its config.json names."""

from collections.abc import Mapping
from dataclasses import dataclass

from headwise.config.checks import shown
from headwise.config.keys import Keys
from headwise.config.model import OutputHead
from headwise.errors import ConfigError

CLASSES = {
    "bert": (
        "BertModel",
        "BertForMaskedLM",
        "BertLMHeadModel",
        "BertForSequenceClassification",
        "BertForNextSentencePrediction",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ),
    "gpt2": (
        "GPT2Model",
        "GPT2LMHeadModel",
        "GPT2ForSequenceClassification",
        "GPT2ForTokenClassification",
        "GPT2ForQuestionAnswering",
    ),
    **{
        family: tuple(
            prefix + suffix
            for suffix in (
                "Model",
                "ForCausalLM",
                "ForSequenceClassification",
                "ForTokenClassification",
                "ForQuestionAnswering",
            )
        )
        for family, prefix in (("llama", "Llama"), ("mistral", "Mistral"), ("mixtral", "Mixtral"), ("qwen3", "Qwen3"))
    },
    "gemma": ("GemmaModel", "GemmaForCausalLM", "GemmaForSequenceClassification", "GemmaForTokenClassification"),
}
"""Classes of transformers that can be read, per family: the first is the bare model, the second its language model."""

_TIED = {"bert": True, "gpt2": True, "gemma": True}  # what `tie_word_embeddings` is where a file does not say


@dataclass(frozen=True, kw_only=True)
class Top:
    """What stands on the last hidden state: BERT's pooler or not, and a head or None."""

    pooler: bool
    head: OutputHead | None


def read_top(
    config: Mapping[str, object],
    family: str,
    *,
    vocab_size: int,
    with_language_model: bool,
    hidden_dropout_p: float = 0.1,
) -> Top:
    """Read what the class of a config has on top.

    Args:
        config: the content of the config.json.
        family: its model_type, a key of `CLASSES`.
        vocab_size: rows of the token embedding, the outputs of a language model.
        with_language_model: read the bare model as the family's language model.
        hidden_dropout_p: dropout before a classifier where the config does not say.
    """
    class_name = _class_name(config, family)
    bare, language_model = CLASSES[family][:2]
    if class_name == bare and with_language_model:
        class_name = language_model
    if class_name == bare:
        return Top(pooler=family == "bert", head=None)
    if class_name.endswith(("ForCausalLM", "ForMaskedLM", "LMHeadModel")):
        return Top(pooler=False, head=_language_model(config, family, vocab_size))
    return _classifier(config, family, class_name, hidden_dropout_p)


def _class_name(config: Mapping[str, object], family: str) -> str:
    names = Keys(config, {"architectures": None}).texts("architectures")
    if not names:
        # What a bare config most likely is: an encoder for its states, a decoder for its predictions.
        return CLASSES[family][0 if family == "bert" else 1]
    if names[0] not in CLASSES[family]:
        raise ConfigError(
            f"class {shown(names[0])} in architectures cannot be read for model_type {family!r}; "
            f"it must be one of {', '.join(CLASSES[family])}"
        )
    return names[0]


def _language_model(config: Mapping[str, object], family: str, vocab_size: int) -> OutputHead:
    tied = Keys(config, {"tie_word_embeddings": _TIED.get(family, False)}).flag("tie_word_embeddings")
    if family != "bert":
        return OutputHead(kind="language_model", num_outputs=vocab_size, tied=tied)
    if not tied:
        raise ConfigError(
            "BERT's language-model head must share the token embedding's weight; "
            "got tie_word_embeddings false; only the tied head can be read"
        )
    return OutputHead(kind="language_model", num_outputs=vocab_size, tied=True, bias=True, transform=True)


def _classifier(config: Mapping[str, object], family: str, class_name: str, hidden_dropout_p: float) -> Top:
    keys = Keys(config, {"classifier_dropout": None})
    dropout_p = keys.probability("classifier_dropout", null=hidden_dropout_p)
    if class_name.endswith("ForTokenClassification"):
        head = OutputHead(kind="classifier", num_outputs=_num_labels(config), bias=True, dropout_p=dropout_p)
        return Top(pooler=False, head=head)
    if class_name.endswith("ForQuestionAnswering"):
        # A start and an end score; only BERT's class takes the number from the config.
        num_outputs = _num_labels(config) if family == "bert" else 2
        return Top(pooler=False, head=OutputHead(kind="classifier", num_outputs=num_outputs, bias=True))
    if class_name == "BertForNextSentencePrediction":
        return Top(pooler=True, head=OutputHead(kind="classifier", num_outputs=2, per_token=False, bias=True))
    if class_name == "BertForSequenceClassification":
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
