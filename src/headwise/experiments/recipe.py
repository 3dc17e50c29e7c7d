"""Recipe: how a model is trained, with every number of it."""

import math
from dataclasses import dataclass
from typing import Literal

from headwise.config.checks import (
    require_choice,
    require_number,
    require_positive,
    require_probability,
    require_size,
    require_text,
    shown,
)
from headwise.errors import ConfigError
from headwise.ops.obstacles import require_impl

Schedule = Literal["cosine", "inverse-sqrt", "constant"]
Precision = Literal["fp32", "amp-bf16", "amp-fp16"]
Checkpoint = Literal["none", "selective", "full"]
BUDGETS = ("budget_tokens", "budget_flops", "budget_seconds")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training: AdamW, a learning rate that warms up and falls, clipped gradients.

    Args:
        steps: updates of the weights.
        batch_size: texts of one update, over all processes and accumulated parts together.
        learning_rate: the highest one.
        warmup_steps: steps in which the rate rises in a line from `learning_rate / warmup_steps`.
        schedule: what follows. "cosine": half a cosine down to `learning_rate * final_share` after the last step;
            "inverse-sqrt": `learning_rate * sqrt(warmup_steps / step)`; "constant".
        final_share: of the highest rate that a cosine ends at.
        betas, weight_decay: of AdamW; what has one dimension (biases, norms) is not decayed.
        clip_norm: largest 2-norm of all gradients together; larger ones are scaled down to it. None = any.
        label_smoothing: share of the target that is spread over all classes, from 0 to below 1.
        precision: "fp32", or torch's autocast to bfloat16 or float16, the latter with a gradient scaler.
        accumulate: parts that a batch is worked off in, one after another; it has as many texts in each.
        checkpoint: what every block of a Transformer computes again in backward instead of keeping it: "none";
            "selective": what stands between queries, keys, values and the attention's result; "full": all of it.
        impl: which implementation computes a Transformer's attentions (`headwise.attention`).
        evaluate_every: steps from one look at the validation set to the next.
        max_bad_steps: steps in a row without a finite gradient after which a run is stopped.
        budget_tokens, budget_flops: instead of `steps`, as many steps as this budget pays for (`steps_for`). Of FLOPs,
            three forward passes of texts as long as the task's longest (`text_flops`).
        budget_seconds: of training, without looks; the first look after it ends the run. The schedule is that of
            `steps`, which are then the most there may be. What is trained in a time differs from machine to machine and
            from run to run: no such run can be repeated.

    Raises:
        ConfigError: a number is out of range.
        UnsupportedError: there is no such implementation.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (AdamW); Vaswani et al. 2017, "Attention
    Is All You Need", section 5.3 (warmup and the inverse square root).
    """

    steps: int = 1000
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    schedule: Schedule = "cosine"
    final_share: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    label_smoothing: float = 0.0
    precision: Precision = "fp32"
    accumulate: int = 1
    checkpoint: Checkpoint = "none"
    impl: str = "auto"
    evaluate_every: int = 100
    max_bad_steps: int = 10
    budget_tokens: int | None = None
    budget_flops: float | None = None
    budget_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "evaluate_every", "max_bad_steps"):
            require_size(name, getattr(self, name))
        require_size("warmup_steps", self.warmup_steps, minimum=0)
        require_positive("learning_rate", self.learning_rate)
        require_number("weight_decay", self.weight_decay)
        if self.clip_norm is not None:
            require_positive("clip_norm", self.clip_norm)
        require_choice("schedule", self.schedule, ("cosine", "inverse-sqrt", "constant"))
        require_choice("precision", self.precision, ("fp32", "amp-bf16", "amp-fp16"))
        require_text("impl", self.impl)
        require_impl(self.impl)
        require_choice("checkpoint", self.checkpoint, ("none", "selective", "full"))
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        for name in budgets:
            require_positive(name, getattr(self, name))
        if len(budgets) > 1:
            raise ConfigError(f"a recipe takes one budget at most; got {' and '.join(budgets)}")
        for name, value, what in (
            ("final_share", self.final_share, "from 0 to 1"),
            ("label_smoothing", self.label_smoothing, "from 0 to below 1"),
        ):
            if not 0 <= value <= 1 or (name == "label_smoothing" and value == 1):
                raise ConfigError(f"{name} must be {what}; got {value}")
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay must not be negative; got {self.weight_decay}")
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise ConfigError(f"betas must be two numbers from 0 to below 1; got {shown(self.betas)}")
        for beta in self.betas:
            require_probability("betas", beta)
        object.__setattr__(self, "betas", tuple(float(beta) for beta in self.betas))  # torch wants no whole numbers
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"accumulate must divide batch_size = {self.batch_size}, so that parts are alike; got {self.accumulate}"
            )

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "inverse-sqrt":
            return self.learning_rate * math.sqrt(max(1, self.warmup_steps) / (step + 1))
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (
            self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        )
