"""read_config: what a Hugging Face config.json describes, as a ModelConfig."""

from collections.abc import Callable, Mapping
from functools import partial

from headwise.config.checks import shown
from headwise.config.families.bart import read_bart
from headwise.config.families.bert import read_bert, read_distilbert
from headwise.config.families.decoders import DECODERS
from headwise.config.families.deepseek import read_deepseek
from headwise.config.families.gpt2 import read_gpt2
from headwise.config.families.llama import read_llama
from headwise.config.families.opt import read_bloom, read_opt
from headwise.config.families.parallel import read_falcon, read_gpt_neox
from headwise.config.families.qwen3_next import read_qwen3_next
from headwise.config.families.t5 import read_t5
from headwise.config.families.vit import read_vit
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError, UnknownArchitectureError
from headwise.masks.patterns import Full

_READERS: dict[str, Callable[..., ModelConfig]] = {
    **{family: partial(read_bert, family=family) for family in ("bert", "roberta", "xlm-roberta")},
    "distilbert": read_distilbert,
    "gpt2": read_gpt2,
    **{family: partial(read_llama, family=family) for family in DECODERS},
    **{family: partial(read_deepseek, family=family) for family in ("deepseek_v2", "deepseek_v3")},
    "qwen3_next": read_qwen3_next,
    "gpt_neox": read_gpt_neox,
    "falcon": read_falcon,
    "opt": read_opt,
    "bloom": read_bloom,
    "t5": read_t5,
    "bart": read_bart,
    "vit": read_vit,
}

FAMILIES = tuple(_READERS)
"""The `model_type`s that can be read."""


def read_config(config: object, *, name: str, head: bool = False) -> ModelConfig:
    """Read the content of a config.json of one of the `FAMILIES`.

    Names, defaults of missing keys and their meaning are those of transformers 5.24, so that the description equals
    the module that transformers builds from the same file. The first class in `architectures` decides what stands on
    top; without one it is the bare model (with its pooler) for encoders and the language model for all others. Equal
    layers share one BlockConfig object.

    Args:
        config: the content of the file. It may hold anything.
        name: what to call the model; errors begin with it.
        head: read a bare model as its family's language model (BertModel as BertForMaskedLM).

    Raises:
        UnknownArchitectureError: the family or the class is not known.
        ConfigError: a value is not of its kind, out of range or contradictory.
    """
    try:
        return _read(config, name, head)
    except ConfigError as error:
        raise type(error)(f"{name}: {error}") from None


def _read(config: object, name: str, head: bool) -> ModelConfig:
    if not isinstance(config, Mapping):
        raise ConfigError(f"a config must be an object with keys; got {shown(config)}")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        got = "it is missing" if family is None else f"got {shown(family)}"
        raise UnknownArchitectureError(f"model_type must be one of {', '.join(FAMILIES)}; {got}")
    if config.get("per_layer_config"):
        raise ConfigError("every layer must have the same sizes; got per_layer_config")
    model: ModelConfig = _READERS[family](config, name=name, head=head)
    if config.get("is_causal") is False and any(block.attention.mask != Full() for block in model.blocks):
        raise ConfigError(f"is_causal must be true or left out, since {family} is read with causal masks; got false")
    return model
