"""What a model loses without its heads: each by itself, and more and more of them."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headwise.config.checks import shown
from headwise.errors import ConfigError, ModelError
from headwise.inspection.ablation.ablate import replaced
from headwise.inspection.ablation.chosen_heads import Heads, projections_of, read_heads
from headwise.inspection.ablation.replacement import Mode, Replacement, read_replacement
from headwise.inspection.ablation.results import AblationLosses, CurvePoint, HeadLoss, PruningCurve
from headwise.inspection.ablation.weighing import Batches, Loss, as_batches, weigh
from headwise.inspection.capture.quiet_passes import Inputs, quietly, run
from headwise.integrations.output_projection import OutputProjection
from headwise.integrations.wrappers import unwrapped


def ablation_losses(
    model: nn.Module,
    inputs: Batches,
    *,
    loss: Loss | None = None,
    heads: Heads | None = None,
    mode: Mode = "zero",
    reference: Batches | None = None,
    seed: int = 0,
    stack: str | None = None,
) -> AblationLosses:
    """Measure the loss with each head ablated by itself: one pass over the inputs for every head, and one with all.

    The model runs in evaluation mode without gradients, and is as it was afterwards.

    Args:
        model: as of `ablated`.
        inputs: what the model is called with: keywords as a mapping or positional arguments as a tuple, or a list of
            such, one for each batch.
        loss: called as `loss(output, inputs)`; returns one number, or (B,) one of each text. Numbers are averaged over
            batches, those of texts over all texts. Default: the loss that the model returns.
        heads: (layer, head) of those to try. Default: all.
        mode, seed, stack: as of `ablated`.
        reference: as of `ablated`. Default: `inputs`, for the modes that need one.

    Raises:
        ModelError: as of `ablated`; there is no loss, it is not finite, or the model puts out the same with all heads
            at 0, so that what was found are not its heads.
        ConfigError: as of `ablated`.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2.
    """
    trial = _Trial(model, inputs, loss=loss, mode=mode, reference=reference, seed=seed, stack=stack)
    every = [(each.layer, head) for each in trial.projections for head in range(each.num_heads)]
    chosen = read_heads(every if heads is None else heads, trial.projections)
    whole = trial.loss_without(())
    found = []
    for layer, numbers in chosen.items():
        for head in numbers:
            without = trial.loss_without([(layer, head)])
            found.append(HeadLoss(layer=layer, head=head, loss=without, difference=without - whole))
    return AblationLosses(heads=tuple(found), loss=whole, mode=mode)


def pruning_curve(
    model: nn.Module,
    inputs: Batches,
    order: Sequence[tuple[int, int]],
    *,
    loss: Loss | None = None,
    every: int = 1,
    mode: Mode = "zero",
    reference: Batches | None = None,
    seed: int = 0,
    stack: str | None = None,
) -> PruningCurve:
    """Measure the loss as heads are ablated one after another, each point with all heads up to it.

    Args:
        model, inputs, loss, mode, reference, seed, stack: as of `ablation_losses`.
        order: (layer, head) in the order in which they go, as `Importance.ranked` gives it: the least important first.
        every: heads between one point and the next (default 1); all of `order` are the last.

    Raises:
        ModelError: as of `ablation_losses`.
        ConfigError: as of `ablated`; an `order` that has none, or a head twice; `every` below 1.

    Source: Michel et al. 2019, section 4.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ConfigError(f"every must be a whole number of heads, at least 1; got {shown(every)}")
    if not isinstance(order, Sequence):
        raise ConfigError(
            f"order must be a sequence of pairs (layer, head): which goes first is told by it; got {shown(order)}"
        )
    trial = _Trial(model, inputs, loss=loss, mode=mode, reference=reference, seed=seed, stack=stack)
    chosen = read_heads(order, trial.projections)
    if sum(map(len, chosen.values())) < len(order):
        raise ConfigError(f"order must name each head once; got {shown(order)}")
    counts = [*range(0, len(order), every), len(order)]
    losses = [trial.loss_without(order[:count]) for count in counts]
    return PruningCurve(
        points=tuple(
            CurvePoint(num_removed=count, loss=each, difference=each - losses[0])
            for count, each in zip(counts, losses, strict=True)
        ),
        order=tuple((int(layer), int(head)) for layer, head in order),
        mode=mode,
    )


class _Trial:
    """A model, its texts and their loss, ready to be read without some heads; see `ablation_losses`."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Batches,
        *,
        loss: Loss | None,
        mode: Mode,
        reference: Batches | None,
        seed: int,
        stack: str | None,
    ):
        model = unwrapped(model)  # a wrapper computes what the model inside does
        self.model = model
        self.batches = as_batches("inputs", inputs)
        self.loss = loss
        self.projections = projections_of(model, stack)
        self.every = {each.layer: list(range(each.num_heads)) for each in self.projections}
        if reference is None and mode != "zero":
            reference = self.batches
        self.replacement = read_replacement(model, self.projections, self.every, mode, reference=reference, seed=seed)
        _require_heads_matter(model, self.projections, self.every, self.batches[0], loss)

    def loss_without(self, heads: Heads) -> float:
        """Return the loss over all batches with some heads ablated."""
        values = []
        chosen = read_heads(heads, self.projections)
        with quietly(self.model), replaced(self.model, self.projections, chosen, self.replacement):
            for inputs in self.batches:
                values.append(weigh(self.model, run(self.model, inputs), inputs, self.loss).double().cpu().reshape(-1))
        mean = torch.cat(values).mean().item()
        if not math.isfinite(mean):
            raise ModelError(f"loss must be finite to be compared; got {mean} without heads {shown(list(heads))}")
        return mean


def _require_heads_matter(
    model: nn.Module,
    projections: Sequence[OutputProjection],
    every: Mapping[int, Sequence[int]],
    inputs: Inputs,
    loss: Loss | None,
) -> None:
    """Raise ModelError where neither what a model puts out nor the loss changes with all heads at 0."""

    def results() -> list[Tensor]:
        output = run(model, inputs)
        leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        return [*leaves, weigh(model, output, inputs, loss)]

    with quietly(model):
        plain = results()
        with replaced(model, projections, every, Replacement(mode="zero", means={}, texts={})):
            without = results()
    if len(plain) == len(without) and all(map(torch.equal, plain, without)):
        raise ModelError(
            f"{type(model).__name__} must put out something else with all heads at 0, or what was found are not its "
            f"heads; it puts out the same ({projections[0].name} and {len(projections) - 1} more)"
        )
