"""Frozen layers: which of a model's weights do not learn, and where gradients flow through them all the same."""

from headwise.config.model import ModelConfig
from headwise.config.vision_model import MapPlaces
from headwise.cost.workload import Workload
from headwise.errors import ConfigError


def require_frozen(config: ModelConfig, workload: Workload) -> None:
    """Raise ConfigError unless the model has as many layers as are frozen, and they stand on what they read alone."""
    if workload.frozen_layers and isinstance(config.patches, MapPlaces):
        raise ConfigError(
            f"frozen_layers must be 0 of {config.name}, whose convolutions stand beside its layers, not below them; "
            f"got {workload.frozen_layers}"
        )
    if workload.frozen_layers > config.num_layers:
        raise ConfigError(
            f"frozen_layers must be at most the number of layers of {config.name}, {config.num_layers}; "
            f"got {workload.frozen_layers}"
        )


def frozen_layers(workload: Workload) -> int:
    """Return how many layers are frozen in a training step; nothing learns in another phase in any case."""
    return workload.frozen_layers if workload.phase == "train" else 0


def makes_embeddings_learn(config: ModelConfig, workload: Workload) -> bool:
    """Tell whether gradients flow down to frozen embeddings, to be dropped there.

    Where transformers checkpoints the layers of a model that reads tokens, it makes what the embeddings give need a
    gradient, for the sake of adapters; every frozen layer above then keeps its input and runs backward.
    """
    is_frozen = workload.lora is not None or frozen_layers(workload) > 0
    is_of_tokens = config.patches is None and config.model_type != "headwise"
    return is_frozen and is_of_tokens and workload.checkpoint == "full"
