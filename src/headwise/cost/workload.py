"""Workload: what is asked of a model."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, no_type_check

from headwise.config.checks import require_choice, require_flag, require_size
from headwise.errors import ConfigError
from headwise.results import Result

MAX_TOKENS = 2**40  # batch x seq; beyond it the closed forms answer about nothing real


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Workload(Result):
    """What is asked of a model: how many texts of what length, for what.

    Args:
        batch: number of texts.
        seq: tokens per text.
        phase: "train" (forward, backward, optimizer step) or "prefill" (forward alone).
        precision: dtype of weights, activations and states: "fp32".
        optimizer: "adamw" or "sgd".
        attention: "sdpa" (torch's fused kernels where they can run) or "eager" (product, softmax, product).
        device: kind of device that the step runs on; the kernels differ.
        dropout: whether the config's dropout is active (it is in training).
    """

    batch: int
    seq: int
    phase: Literal["train", "prefill"] = "train"
    precision: Literal["fp32"] = "fp32"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    attention: Literal["sdpa", "eager"] = "sdpa"
    device: Literal["cpu", "cuda"] = "cuda"
    dropout: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "seq"):
            require_size(name, getattr(self, name))
        for field in fields(self):
            if get_origin(field.type) is Literal:
                require_choice(field.name, getattr(self, field.name), get_args(field.type))
        require_flag("dropout", self.dropout)
        if self.batch * self.seq > MAX_TOKENS:
            raise ConfigError(f"batch x seq must be at most 2^40 tokens; got {self.batch} x {self.seq}")
