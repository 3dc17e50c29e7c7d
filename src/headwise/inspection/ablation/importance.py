"""How important each head is, told from gradients: one backward pass for all heads."""

import torch
from torch import Tensor, nn

from headwise.errors import ModelError
from headwise.inspection.ablation.chosen_heads import projections_of
from headwise.inspection.ablation.results import HeadImportance, Importance
from headwise.inspection.ablation.weighing import Batches, Loss, as_batches, weigh
from headwise.inspection.capture.quiet_passes import Inputs, count_texts, quietly, run
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.output_projection import OutputProjection
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.integrations.wrappers import unwrapped


def head_importance(
    model: nn.Module, inputs: Batches, *, loss: Loss | None = None, stack: str | None = None
) -> Importance:
    """Tell how important every head is by what a small change of its output does to the loss, in one backward pass.

    `I_h = mean over texts x of |dL(x) / dg_h|`, where the gate `g_h = 1` is a factor on what head h puts out, so that
    `dL(x) / dg_h = sum of head_h(x) * dL(x) / dhead_h(x)` over its tokens and numbers. Each text has a gate of its own:
    with one for the batch, texts that pull apart would cancel before the |.|. A layer's importances are then divided by
    the root of the sum of their squares.

    Where the loss is one number for a batch, it is taken as a mean over texts, as the loss itself weighs them: the
    importance is `sum over texts of |dL / dg|` of that batch, so that in a mean over tokens longer texts weigh more.
    Batches are averaged then.

    The model runs in evaluation mode and is as it was afterwards; its parameters get no gradients.

    Args:
        model: as of `ablated`.
        inputs: as of `ablation_losses`.
        loss: called as `loss(output, inputs)`; returns (B,) the loss of each text, or one number. Default: the loss
            that the model returns.
        stack: as of `ablated`.

    Raises:
        ModelError: as of `ablated`; there is no loss, or it does not depend on the heads by a gradient, or that is not
            finite, or one text cannot be told from another where a layer reads heads.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1, equation 2; their division by
    layer is that of Molchanov et al. 2017, "Pruning Convolutional Neural Networks for Resource Efficient Inference".
    """
    batches = as_batches("inputs", inputs)
    model = unwrapped(model)
    projections = projections_of(model, stack)
    sums = [torch.zeros(each.num_heads, dtype=torch.float64) for each in projections]
    divisor = 0
    for batch in batches:
        gradients, num_losses = _gate_gradients(model, projections, batch, loss)
        divisor += num_losses
        sums = [total + one for total, one in zip(sums, gradients, strict=True)]
    heads = []
    for projection, total in zip(projections, sums, strict=True):
        values = total / divisor
        norm = values.norm()
        normalized = values / norm if norm > 0 else values
        heads += [
            HeadImportance(layer=projection.layer, head=head, importance=value, normalized=share)
            for head, (value, share) in enumerate(zip(values.tolist(), normalized.tolist(), strict=True))
        ]
    return Importance(heads=tuple(heads))


def _gate_gradients(
    model: nn.Module, projections: tuple[OutputProjection, ...], inputs: Inputs, loss: Loss | None
) -> tuple[list[Tensor], int]:
    """Return each layer's sum over texts of |d loss / d gate|, (H,) on the CPU, and how many losses there were."""
    num_texts = count_texts(inputs) if is_transformers_model(model) else None
    gates: dict[int, Tensor] = {}

    def gate(projection: OutputProjection, heads: Tensor) -> Tensor:
        rows = heads.shape[0]
        texts = rows if num_texts is None else num_texts
        if rows % texts:
            raise ModelError(
                f"{projection.name} must read the heads of each text by itself for their importance; "
                f"it reads {rows} rows of {texts} texts: give one text at a time"
            )
        if projection.layer not in gates:  # one that is called again keeps its gate
            ones = torch.ones(texts, projection.num_heads, dtype=heads.dtype, device=heads.device)
            gates[projection.layer] = ones.requires_grad_()
        # windows of one text stand one after another
        return heads * gates[projection.layer].repeat_interleave(rows // texts, dim=0)[:, None, :, None]

    with quietly(model), torch.enable_grad():
        with edit_heads(model, projections, gate) as passes:
            value = weigh(model, run(model, inputs), inputs, loss)
        passes.require_called(model, projections)
        rows = {len(each) for each in gates.values()}
        if value.dim() and rows != {len(value)}:
            raise ModelError(
                f"loss must return one number, or one for each of the texts; got {len(value)} for {max(rows)} texts"
            )
        gradients: tuple[Tensor | None, ...] = (None,) * len(projections)
        if value.requires_grad:
            ordered = [gates[each.layer] for each in projections]
            gradients = torch.autograd.grad(value.sum(), ordered, allow_unused=True)
    if not all(gradient is None or gradient.isfinite().all() for gradient in gradients):
        raise ModelError(
            f"loss must have a finite gradient by what heads put out; got NaN or infinity for {type(model).__name__}, "
            f"where the loss is {value.mean().item():.3g}"
        )
    if all(gradient is None or not gradient.any() for gradient in gradients):
        raise ModelError(
            f"loss must depend on what the heads of {type(model).__name__} put out, by a gradient; "
            "its gradient by every head is 0 or missing"
        )
    zeros = [torch.zeros(each.num_heads, dtype=torch.float64) for each in projections]
    sums = [
        zero if gradient is None else gradient.double().abs().sum(dim=0).cpu()
        for zero, gradient in zip(zeros, gradients, strict=True)
    ]
    return sums, value.numel()
