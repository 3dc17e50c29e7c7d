"""build: the module that a ModelConfig describes."""

from typing import Literal

from headwise.config.checks import require_instance
from headwise.config.model import ModelConfig
from headwise.nn.classifier import Classifier
from headwise.nn.language_model import LanguageModel
from headwise.nn.transformer import Transformer


def build(
    config: ModelConfig,
    *,
    checkpoint: Literal["none", "selective", "full"] = "none",
    impl: str = "auto",
) -> Transformer | LanguageModel | Classifier:
    """Build the model that a config describes, of our own modules, with random weights.

    Args:
        config: of the model. Its head decides what is built: a `LanguageModel`, a `Classifier`, or without one a
            `Transformer`, whose output is the last hidden state.
        checkpoint: what every block computes again in backward (see `Block`).
        impl: which implementation computes the attentions.

    Raises:
        ConfigError: another description than a `ModelConfig`, another `checkpoint`.
        UnsupportedError: the model has a part that is not built here.
    """
    require_instance("config", config, ModelConfig)
    if config.head is None:
        return Transformer(config, checkpoint=checkpoint, impl=impl)
    kind = LanguageModel if config.head.kind == "language_model" else Classifier
    return kind(config, checkpoint=checkpoint, impl=impl)
