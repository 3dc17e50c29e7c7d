"""Selective checkpointing of Hugging Face models: attention keeps queries, keys and values alone.

What stands between them and the attention's output (scores, weights, a kernel's normalisers) is dropped after the
forward pass and computed again in backward. transformers looks its attention function up by name, so that a function
under a name of our own can wrap the one that would have run; its masks are registered under the same name.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headwise.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "headwise_recomputed_"


def recompute_attention(model: "PreTrainedModel", implementation: Literal["sdpa", "eager"]) -> None:
    """Switch a model to attention of that implementation that is computed again in backward.

    Args:
        model: a Hugging Face model whose attention goes through transformers' interface.
        implementation: "sdpa" or "eager".

    Raises:
        ValueError: the model has attention of its own.
        UnsupportedError: (from inside the model's call) its file has no eager attention function.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    name = NAME + implementation
    if name not in AttentionInterface():
        AttentionInterface.register(name, partial(_attend_under_checkpoint, implementation))
        AttentionMaskInterface.register(name, AttentionMaskInterface()[implementation])
    model.set_attn_implementation(name)


def _attend_under_checkpoint(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    attend = _attention_function(implementation, module)

    def core(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
        return attend(module, query, key, value, attention_mask, **keywords)

    if not torch.is_grad_enabled():
        return core(query, key, value)
    return checkpoint(core, query, key, value, use_reentrant=False)  # type: ignore[no-any-return]


def _attention_function(implementation: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    if implementation == "sdpa":
        from transformers import AttentionInterface

        return AttentionInterface()["sdpa"]  # type: ignore[no-any-return]
    home = sys.modules[type(module).__module__]  # each model's file has an eager attention of its own
    try:
        return home.eager_attention_forward  # type: ignore[no-any-return]
    except AttributeError as error:
        raise UnsupportedError(
            f"selective checkpointing needs an eager_attention_forward in the model's file; {home.__name__} has none: "
            "give attention 'sdpa', or checkpoint 'full'"
        ) from error
