"""What a model's scores are worth: the loss that it learns from, and how often its answers are right."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from headwise.experiments.examples import IGNORED


def loss_sum(
    scores: Float[Tensor, "*places answers classes"],
    targets: Int[Tensor, "*places answers"],
    *,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """Return the cross-entropy of all answers together, in nats, and how many they are.

    It is a sum, so that parts of a batch, of whatever numbers of answers, add up to the mean of the whole.

    Args:
        scores: one number a class.
        targets: the right class; IGNORED where none is asked for.
        label_smoothing: share of the target that is spread over all classes.
    """
    return loss_total(scores, targets, label_smoothing=label_smoothing), int((targets != IGNORED).sum())


def loss_total(
    scores: Float[Tensor, "*places answers classes"],
    targets: Int[Tensor, "*places answers"],
    *,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the first of what `loss_sum` does, which reads no number of the targets."""
    return functional.cross_entropy(
        scores.flatten(0, -2).to(torch.promote_types(scores.dtype, torch.float32)),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


@dataclass
class AnswerSums:
    """Sums over texts, from which `metrics` makes means.

    Attributes:
        loss: of all answers, in nats, without smoothing.
        answers, right: how many there were, and how many were right.
        places, places_right: places with an answer, and those at which all K were right.
        texts, texts_right: texts, and those whose every answer was right.
        num_classes: that answers are chosen from, where the F1 score is to be told.
        wanted, given, hit: of each class, how many answers it was right for, was given as, and both.
    """

    loss: float = 0.0
    answers: int = 0
    right: int = 0
    places: int = 0
    places_right: int = 0
    texts: int = 0
    texts_right: int = 0
    num_classes: int | None = None
    wanted: Tensor = field(init=False)
    given: Tensor = field(init=False)
    hit: Tensor = field(init=False)

    def __post_init__(self) -> None:
        zeros = torch.zeros(self.num_classes or 0, dtype=torch.int64)
        self.wanted, self.given, self.hit = zeros, zeros.clone(), zeros.clone()

    def add(
        self,
        scores: Float[Tensor, "texts seq_len answers classes"],
        targets: Int[Tensor, "texts seq_len answers"],
    ) -> None:
        """Add texts, each with one answer at the least."""
        total, count = loss_sum(scores, targets)
        is_asked = targets != IGNORED
        chosen = scores.argmax(dim=-1)
        is_right = (chosen == targets) | ~is_asked
        has_answer = is_asked.any(dim=-1)
        self.loss += total.item()
        self.answers += count
        self.right += int((is_right & is_asked).sum())
        self.places += int(has_answer.sum())
        self.places_right += int((is_right.all(dim=-1) & has_answer).sum())
        self.texts += len(targets)
        self.texts_right += int(is_right.flatten(1).all(dim=-1).sum())
        if self.num_classes is not None:
            right = targets[is_asked]
            self.wanted += _count(right, self.num_classes)
            self.given += _count(chosen[is_asked], self.num_classes)
            self.hit += _count(right[is_right[is_asked]], self.num_classes)

    def metrics(self) -> dict[str, float]:
        """Return `loss` (nats an answer), `accuracy` (of answers), `exact` (of places), `whole` (of texts).

        Where there are classes `macro_f1`, too: the mean over them of `2 hit / (wanted + given)`, without those that
        were neither wanted nor given, for which it is not defined.
        """
        metrics = {
            "loss": self.loss / max(1, self.answers),
            "accuracy": self.right / max(1, self.answers),
            "exact": self.places_right / max(1, self.places),
            "whole": self.texts_right / max(1, self.texts),
        }
        if self.num_classes is not None:
            seen = self.wanted + self.given
            scores = 2 * self.hit[seen > 0].double() / seen[seen > 0]
            metrics["macro_f1"] = scores.mean().item() if len(scores) else 0.0
        return metrics


def _count(classes: Int[Tensor, " answers"], num_classes: int) -> Int[Tensor, " classes"]:
    return torch.bincount(classes.cpu(), minlength=num_classes)


def bucket_of(length: int, bounds: tuple[int, ...]) -> str:
    """Name the bucket of a length: "<=10", "11-20", ">40" for bounds (10, 20, 40) and so on."""
    for number, bound in enumerate(bounds):
        if length <= bound:
            return f"<={bound}" if number == 0 else f"{bounds[number - 1] + 1}-{bound}"
    return f">{bounds[-1]}" if bounds else "all"
