"""A smaller model without some heads, which computes what the model does with them at 0."""

import copy
from typing import TypeVar, cast

from torch import nn

from headwise.convert.surgery import prune_heads
from headwise.errors import UnsupportedError
from headwise.inspection.ablation.chosen_heads import Heads, projections_of, read_heads
from headwise.nn.multihead import MultiHeadAttention

Model = TypeVar("Model", bound=nn.Module)


def pruned(model: Model, heads: Heads, *, stack: str | None = None) -> Model:
    """Copy a model without some of its heads: the copy computes what the model does with `ablated(model, heads)`.

    Works where `prune_heads` does: on layers of headwise's own. A Hugging Face layer is turned into one by
    `from_huggingface`. Settings that the model keeps of its own beside those of its layers stay as they are.

    Args:
        model: stays as it is.
        heads: (layer, head) of those that go, from 0; not all of a layer.
        stack: as of `ablated`.

    Raises:
        UnsupportedError: a layer that is no `MultiHeadAttention`, or one module with another; what `prune_heads`
            refuses.
        ConfigError: heads that do not exist, or all of a layer.
        ModelError: as of `ablated`.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.
    """
    projections = projections_of(model, stack)
    chosen = read_heads(heads, projections)
    smaller = copy.deepcopy(model)
    modules = [each.module for each in projections]
    for layer, numbers in chosen.items():
        path = projections[layer].name.rpartition(".")[0]
        module = smaller.get_submodule(path)
        if not isinstance(module, MultiHeadAttention) or modules.count(projections[layer].module) > 1:
            raise UnsupportedError(
                "heads are taken out of a MultiHeadAttention of headwise's own that no other layer shares; "
                f"layer {layer} of {type(model).__name__} is none: ablate them"
            )
        if not path:
            return cast(Model, prune_heads(module, numbers))
        smaller.set_submodule(path, prune_heads(module, numbers), strict=True)
    return smaller
