"""The peak of a run's first step, foretold from its settings: the very quantity that `Run.peak_bytes` measures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.memory import predict_ledger
from headwise.cost.results import Ledger, bytes_at_moments
from headwise.cost.step.own_attention import plan_kernel
from headwise.cost.tracing.trace import trace_step
from headwise.cost.workload import Workload
from headwise.errors import HeadwiseError, UnsupportedError
from headwise.experiments.answers import loss_total
from headwise.experiments.asking import ModelDescription, make_model, scores_of
from headwise.experiments.examples import Examples, TokenTask
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.run import RunSettings, data_seed
from headwise.masks.patterns import Causal

STANDING = ("parameter", "buffer", "input", "optimizer")  # kinds of tensors that are there before a step begins
RECURRENT = "there is no prediction for recurrent models"
OFF_CPU = "it is predicted for steps on a CPU alone"


@dataclass(frozen=True, kw_only=True)
class PredictedPeaks:
    """What is foretold of an arm.

    Args:
        peak_bytes: one a seed: the most that forward and backward of the first step take beyond what stood before;
            None = not known.
        reason: why one is not known.
    """

    peak_bytes: tuple[int | None, ...]
    reason: str | None = None


def predicted_peaks(settings: RunSettings, seeds: Sequence[int], *, device: str = "cpu") -> PredictedPeaks:
    """Foretell the peak of each seed's first step, whose batch is as wide as the longest text in it.

    By the closed form (`predict_ledger`) where it plays the very step: causal attention without padding, plain
    cross-entropy. Else by a trace of the step's own code on tensors without numbers (`trace_step`). What kernels take
    for themselves on a CPU is in neither: some do so in bfloat16.

    Args:
        settings: of the arm's runs.
        seeds: of the runs.
        device: that the runs were on, as their environment names it.
    """
    if isinstance(settings.model, RecurrentConfig):
        return PredictedPeaks(peak_bytes=(None,) * len(seeds), reason=RECURRENT)
    if device != "cpu":
        return PredictedPeaks(peak_bytes=(None,) * len(seeds), reason=OFF_CPU)
    recipe, task = settings.recipe, settings.task
    size = recipe.batch_size // recipe.accumulate
    found: dict[tuple[int, bool], int | None] = {}
    each, reason = [], None
    for seed in seeds:
        part = task.draw(recipe.batch_size, seed=data_seed("train", seed, 0)).take(slice(0, size))
        shape = (part.ids.shape[1], part.real is None)
        if shape not in found:
            try:
                found[shape] = step_bytes(_ledger(settings.model, recipe, task, part))
            except HeadwiseError as error:
                found[shape], reason = None, str(error)
        each.append(found[shape])
    return PredictedPeaks(peak_bytes=tuple(each), reason=reason)


def step_bytes(ledger: Ledger) -> int:
    """Return the most bytes alive before the optimizer steps, without what stood there when the step began."""
    spans = [(entry.born, entry.freed, entry.bytes) for entry in ledger.entries if entry.kind not in STANDING]
    by_moment = bytes_at_moments(len(ledger.moments), spans)
    return max(
        num_bytes
        for moment, num_bytes in zip(ledger.moments, by_moment, strict=True)
        if not moment.startswith("optimizer")
    )


def _ledger(model: ModelDescription, recipe: Recipe, task: TokenTask, part: Examples) -> Ledger:
    """Return every tensor of a step: of its last pass, where it is worked off in parts.

    Raises:
        HeadwiseError: neither the closed form nor the trace knows the step.
    """
    num_texts, seq = part.ids.shape
    workload = Workload(
        batch=num_texts,
        seq=seq,
        precision=recipe.precision,
        optimizer="sgd",  # it has no states; the step ends before the optimizer
        attention="eager" if recipe.impl == "reference" else "sdpa",
        checkpoint=recipe.checkpoint,
        accumulation=recipe.accumulate,
        loss="cross_entropy",
        device="cpu",
    )
    is_plain = part.real is None and recipe.label_smoothing == 0
    if is_plain and isinstance(model, ModelConfig) and _is_played(model, workload, recipe.impl):
        try:
            return predict_ledger(model, workload)
        except UnsupportedError:
            pass
    given = (part.ids, part.targets, *(() if part.real is None else (part.real,)))
    own = replace(workload, checkpoint="none", loss="sum")  # the module checkpoints by itself, and gives its loss
    return trace_step(lambda: _Asked(model, recipe, task), given, own, loss=_as_it_is)


def _is_played(model: ModelConfig, workload: Workload, impl: str) -> bool:
    """Tell whether the closed form computes attention as `impl` does.

    Of other masks than the causal one it counts the tensors anew in every layer, where `ops` remembers them.
    """
    layers = [block.attention for block in model.blocks]
    if impl not in ("auto", "reference", "sdpa") or model.head is None or model.head.kind != "language_model":
        return False
    return all(
        isinstance(layer, AttentionConfig)
        and layer.mask == Causal()
        and (impl != "sdpa" or plan_kernel(layer, workload)[1].name == "flash_cpu")
        for layer in layers
    )


class _Asked(nn.Module):
    """A model with its task's loss on top."""

    def __init__(self, model: ModelDescription, recipe: Recipe, task: TokenTask):
        super().__init__()
        self.model = make_model(model, checkpoint=recipe.checkpoint, impl=recipe.impl)
        self.task = task
        self.label_smoothing = recipe.label_smoothing

    def forward(
        self,
        ids: Int[Tensor, "texts seq_len"],
        targets: Int[Tensor, "texts seq_len answers"],
        real: Bool[Tensor, "texts seq_len"] | None = None,
    ) -> Float[Tensor, ""]:
        examples = Examples(ids, targets, ids[:, 0], real)  # nobody reads the lengths
        return loss_total(scores_of(self.model, examples, self.task), targets, label_smoothing=self.label_smoothing)


def _as_it_is(output: Tensor) -> Tensor:
    return output
