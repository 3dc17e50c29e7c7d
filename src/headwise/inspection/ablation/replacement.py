"""What ablated heads put out instead of their own: nothing, their mean, or what they did on another text."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.config.checks import MAX_SEED, require_choice, require_size
from headwise.errors import ConfigError
from headwise.inspection.ablation.weighing import Batches, as_batches
from headwise.inspection.capture.quiet_passes import Inputs, quietly, run
from headwise.inspection.capture.told_tokens import told_tokens
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.output_projection import OutputProjection
from headwise.integrations.transformers_attention import is_transformers_model

MODES = ("zero", "mean", "resample")
Mode = Literal["zero", "mean", "resample"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Replacement:
    """What heads put out instead of their own.

    Args:
        mode: how the rest is used.
        means: by layer and head, (V,).
        texts: by layer, of each text of the reference, (real tokens, H, V).
        shift: texts between one and the one that its heads take from.
    """

    mode: Mode
    means: Mapping[tuple[int, int], Tensor]
    texts: Mapping[int, Sequence[Tensor]]
    shift: int = 0

    def of(self, layer: int, heads: Sequence[int], like: Tensor, first_text: int) -> Tensor:
        """Return what some heads of a layer put out instead of `like`, (B, T, heads, V), its texts from a number on."""
        if self.mode == "zero":
            return torch.zeros_like(like)
        if self.mode == "mean":
            return torch.stack([self.means[layer, head] for head in heads]).to(like).expand_as(like)
        batch, num_tokens = like.shape[:2]
        donors = self.texts[layer]
        rows = []
        for text in range(first_text, first_text + batch):
            donor = donors[(text + self.shift) % len(donors)]
            rows.append(donor[torch.arange(num_tokens) % len(donor)][:, list(heads)])
        return torch.stack(rows).to(like)


def read_replacement(
    model: nn.Module,
    projections: Sequence[OutputProjection],
    chosen: Mapping[int, Sequence[int]],
    mode: Mode,
    *,
    reference: Batches | None,
    seed: int,
) -> Replacement:
    """Read what chosen heads shall put out, running the model on the reference where the mode needs it.

    Raises:
        ModelError, ConfigError: as of `ablated`.
    """
    require_choice("mode", mode, MODES)
    require_size("seed", seed, minimum=0, maximum=MAX_SEED)
    if (reference is None) is not (mode == "zero"):
        what = "must be left out for mode 'zero'" if mode == "zero" else f"must be given for mode {mode!r}"
        raise ConfigError(f"reference {what}; got {'one' if reference is not None else None}")
    if mode == "zero" or reference is None:
        return Replacement(mode=mode, means={}, texts={})
    batches = as_batches("reference", reference)
    read = [each for each in projections if each.layer in chosen]
    if mode == "mean":
        return Replacement(mode=mode, means=_read_means(model, read, chosen, batches), texts={})
    texts: dict[int, list[Tensor]] = {each.layer: [] for each in read}

    def keep(layer: int, heads: Tensor, real: Tensor) -> None:
        texts[layer] += [text[is_real] for text, is_real in zip(heads, real, strict=True)]

    _read_outputs(model, read, batches, keep)
    num_texts = min((len(each) for each in texts.values()), default=2)
    if num_texts < 2:
        raise ConfigError(f"reference must hold two texts or more to resample from another; got {num_texts}")
    shift = int(torch.randint(1, num_texts, (), generator=torch.Generator().manual_seed(seed)))
    return Replacement(mode=mode, means={}, texts=texts, shift=shift)


def _read_means(
    model: nn.Module,
    projections: Sequence[OutputProjection],
    chosen: Mapping[int, Sequence[int]],
    batches: Sequence[Inputs],
) -> dict[tuple[int, int], Tensor]:
    """Return the mean of each chosen head over the real tokens, summed in float64."""
    sums: dict[int, Tensor] = {}
    counts: Counter[int] = Counter()

    def add(layer: int, heads: Tensor, real: Tensor) -> None:
        summed = heads[real].double().sum(dim=0)
        sums[layer] = sums[layer] + summed if layer in sums else summed
        counts[layer] += int(real.sum())

    _read_outputs(model, projections, batches, add)
    return {(layer, head): sums[layer][head] / counts[layer] for layer in sums for head in chosen[layer]}


def _read_outputs(
    model: nn.Module,
    projections: Sequence[OutputProjection],
    batches: Sequence[Inputs],
    take: Callable[[int, Float[Tensor, "batch num_tokens num_heads head_dim"], Bool[Tensor, "batch num_tokens"]], None],
) -> None:
    """Run the model on every batch, showing what the heads of each layer put out and which tokens are real."""
    for inputs in batches:

        def look(projection: OutputProjection, heads: Tensor, inputs: Inputs = inputs) -> Tensor:
            real = _real_tokens(model, projection, heads, inputs)
            if not len(real) or not real.any(dim=1).all():
                raise ConfigError("each text of reference must hold a token that is no padding; got one without")
            take(projection.layer, heads.detach(), real)
            return heads

        with quietly(model), edit_heads(model, projections, look) as passes:
            run(model, inputs)
        passes.require_called(model, projections)


def _real_tokens(model: nn.Module, projection: OutputProjection, heads: Tensor, inputs: Inputs) -> Tensor:
    """Return which of a layer's tokens are no padding, as far as a Hugging Face model is told."""
    if is_transformers_model(model) and isinstance(inputs, Mapping):
        in_decoder = model.config.is_encoder_decoder and "decoder" in projection.name.split(".")  # type: ignore[union-attr]
        told = told_tokens(model, (), inputs, name="decoder_attention_mask" if in_decoder else "attention_mask")
        if told is not None and told.shape == heads.shape[:2]:
            return told.to(heads.device)
    return torch.ones(heads.shape[:2], dtype=torch.bool, device=heads.device)
