"""Heads put out of action while a model runs: at 0, at their mean, or with what they did on another text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwise.errors import ModelError
from headwise.inspection.ablation.chosen_heads import Heads, projections_of, read_heads
from headwise.inspection.ablation.replacement import Mode, Replacement, read_replacement
from headwise.inspection.ablation.weighing import Batches
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.output_projection import OutputProjection
from headwise.integrations.wrappers import unwrapped


@contextmanager
def ablated(
    model: nn.Module,
    heads: Heads,
    mode: Mode = "zero",
    *,
    reference: Batches | None = None,
    seed: int = 0,
    stack: str | None = None,
) -> Iterator[None]:
    """Put some heads of a model out of action while the context is open.

    What a head puts out is changed where the layer's output projection reads it, `output = projection(concat over heads
    h of head_h)`, so that the attention implementation does not matter, and gradients pass:

    - "zero": `head_h = 0` (Michel et al. 2019, section 2.3).
    - "mean": `head_h` = its mean over all real tokens of `reference`.
    - "resample": token i of text b takes what the head puts out at token `i mod n` of text `(b + s) mod N` of
      `reference`, which has N texts, this one of n real tokens; `s`, from 1 to N - 1, is drawn by `seed`. Texts are
      counted from where the context opens: with the same texts in `reference` none meets itself.

    The model is as it was afterwards, also after an exception.

    Args:
        model: a Hugging Face model, or a module with `nn.MultiheadAttention`s or headwise's own layers.
        heads: (layer, head) of each, from 0.
        mode: what they put out instead.
        reference: inputs of one pass or a list of several, for "mean" and "resample": read once, in evaluation mode. Of
            a Hugging Face model's texts the `attention_mask` tells the real tokens; else all are.
        seed: of the draw of "resample".
        stack: name of the stack of layers that `heads` counts in ("encoder", "cross", ...). Default: the only one of
            self-attention.

    Raises:
        ModelError: heads cannot be found in the model; several stacks, or none by that name; at the end: the model was
            called and the projection of an ablated head was not.
        ConfigError: heads that do not exist, another mode, a `reference` that is missing, not needed, too small, or
            holds a text of padding alone.

    Source: mean: Wang et al. 2022, "Interpretability in the Wild"; resample: Chan et al. 2022, "Causal Scrubbing".
    """
    if unwrapped(model) is not model and hasattr(model, "_orig_mod"):
        raise ModelError(
            "a compiled model runs its graphs, which hooks do not reach; got one of torch.compile: ablate the model "
            "that was compiled (its _orig_mod), and run that"
        )
    model = unwrapped(model)
    projections = projections_of(model, stack)
    chosen = read_heads(heads, projections)
    replacement = read_replacement(model, projections, chosen, mode, reference=reference, seed=seed)
    with replaced(model, projections, chosen, replacement):
        yield


@contextmanager
def replaced(
    model: nn.Module,
    projections: Sequence[OutputProjection],
    chosen: Mapping[int, Sequence[int]],
    replacement: Replacement,
) -> Iterator[None]:
    """Let chosen heads put out the replacement; see `ablated`."""
    num_texts: Counter[int] = Counter()  # that each layer has read

    def edit(projection: OutputProjection, heads: Tensor) -> Tensor:
        layer = projection.layer
        numbers = torch.tensor(chosen[layer], device=heads.device)
        instead = replacement.of(layer, chosen[layer], heads[:, :, chosen[layer]], num_texts[layer])
        num_texts[layer] += heads.shape[0]
        return heads.index_copy(2, numbers, instead)

    changed = [each for each in projections if each.layer in chosen]
    with edit_heads(model, changed, edit) as passes:
        yield
    passes.require_called(model, changed)
