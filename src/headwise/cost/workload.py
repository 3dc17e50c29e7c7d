"""Workload: what is asked of a model."""

from dataclasses import dataclass
from typing import Literal

from headwise.errors import HeadwiseError
from headwise.results import Result

MAX_TOKENS = 2**40  # batch x seq; beyond it the closed forms answer about nothing real


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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise HeadwiseError(f"{name} must be a whole number, at least 1; got {value!r}")
        if self.batch * self.seq > MAX_TOKENS:
            raise HeadwiseError(f"batch x seq must be at most 2^40 tokens; got {self.batch} x {self.seq}")
