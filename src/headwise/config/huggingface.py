"""read_config: what a Hugging Face config.json describes, as a ModelConfig."""

from collections.abc import Mapping

from headwise.config.checks import shown
from headwise.config.families.bert import read_bert
from headwise.config.families.gpt2 import read_gpt2
from headwise.config.families.llama import DEFAULTS, read_llama
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError

FAMILIES = ("bert", "gpt2", *DEFAULTS)
"""The `model_type`s that can be read."""


def read_config(config: object, *, name: str, head: bool = False) -> ModelConfig:
    """Read the content of a config.json of one of the `FAMILIES`.

    Names, defaults of missing keys and their meaning are those of transformers 5.24, so that the description equals
    the module that transformers builds from the same file. The first class in `architectures` decides what stands on
    top; without one it is BertModel (with its pooler) for "bert" and the causal language model for decoders. Equal
    layers share one BlockConfig object.

    Args:
        config: the content of the file. It may hold anything.
        name: what to call the model; errors begin with it.
        head: read a bare model as its family's language model (BertModel as BertForMaskedLM).

    Raises:
        ConfigError: the family or the class is not known, or a value is not of its kind, out of range or contradictory.
    """
    try:
        return _read(config, name, head)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _read(config: object, name: str, head: bool) -> ModelConfig:
    if not isinstance(config, Mapping):
        raise ConfigError(f"a config must be an object with keys; got {shown(config)}")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        got = "it is missing" if family is None else f"got {shown(family)}"
        raise ConfigError(f"model_type must be one of {', '.join(FAMILIES)}; {got}")
    if config.get("per_layer_config"):
        raise ConfigError("every layer must have the same sizes; got per_layer_config")
    if family == "bert":
        return read_bert(config, name=name, head=head)
    if family == "gpt2":
        return read_gpt2(config, name=name, head=head)
    return read_llama(config, name=name, head=head, family=family)
