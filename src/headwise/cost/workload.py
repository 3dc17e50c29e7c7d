"""Workload: what is asked of a model."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, no_type_check

from headwise.config.checks import require_choice, require_flag, require_instance, require_size, shown
from headwise.errors import ConfigError
from headwise.results import Result

MAX_TOKENS = 2**40  # batch x seq; beyond it the closed forms answer about nothing real

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "gate_proj", "up_proj", "down_proj")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adamw8bit", "adafactor", "lion", "muon")

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Lora(Result):
    """Low-rank adapters beside frozen projections: `y = W x + scale * B (A x)`, A (rank, inputs), B (outputs, rank).

    Args:
        rank: rows of A.
        targets: the projections that get an adapter, by the names of design ("q_proj", "k_proj", "v_proj", "out_proj",
            "gate_proj", "up_proj", "down_proj").

    Source: Hu et al. 2021, "LoRA", section 4.1.
    """

    rank: int
    targets: tuple[str, ...] = ("q_proj", "v_proj")

    def __post_init__(self) -> None:
        require_size("rank", self.rank)
        require_instance("targets", self.targets, tuple)
        for target in self.targets:
            require_choice("a target of lora", target, LORA_TARGETS)


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Workload(Result):
    """What is asked of a model: how many texts of what length, for what.

    Args:
        batch: number of texts.
        seq: tokens per text; of a decode, those that the cache holds afterwards.
        phase: "train" (forward, backward, optimizer step), "prefill" (forward alone) or "decode" (one more token for
            each text: the last of its `seq`, which reads a cache of the `seq - 1` before it; so there is 1 query, and a
            layer's key length is `seq`, or its window if that is smaller). Encoders have no decode.
        precision: "fp32", "bf16" and "fp16": weights, activations and states all have this dtype. "amp-bf16" and
            "amp-fp16": float32 weights and states under torch's autocast to that dtype.
        optimizer: one of `OPTIMIZERS`.
        optimizer_step: how torch's optimizer goes over the weights: "foreach" (all at once), "fused" or "loop" (one by
            one). Default: what torch takes by itself, "foreach" on CUDA and "loop" on CPU and for Adafactor.
        attention: "sdpa" (torch's fused kernels where they can run; of our own layers what `impl="auto"` takes) or
            "eager" (product, softmax, product).
        checkpoint: what is computed again in backward instead of saved: "none"; "selective": what stands between
            queries, keys, values and the attention's output (Korthikanti et al. 2022, section 5); "full": every layer.
        accumulation: forward and backward passes of `batch` texts each, per optimizer step.
        lora: adapters that are trained in place of the weights, or None.
        frozen_layers: the embeddings and the first so many layers (of an encoder-decoder all of the encoder, and the
            decoder's first) are frozen: no gradients, no states, and nothing is kept below the first layer that learns.
            0 freezes nothing. A head that is tied to the token table is frozen with it. Where transformers checkpoints
            every layer ("full"), it makes what frozen embeddings give need a gradient, so that backward runs through
            frozen layers too and each keeps its input. Not beside `lora`, which freezes every weight.
        kv_cache: what a prefill leaves behind and a decode reads: "model", in the model's dtype; or "int8", a byte for
            each number and a float32 scale for each token and kv head, of keys and of values, read back into the
            model's dtype a layer at a time. Derived, not measured: no library does precisely this (transformers' own
            quantised cache groups numbers otherwise and leaves the newest tokens as they are). A training has no cache.
        loss: "sum" of the output; "cross_entropy" of a language model's scores, as transformers computes it;
            "chunked_cross_entropy": the same over chunks of tokens, whose scores are computed again in backward.
        device: kind of device that the step runs on; the kernels differ.
        compute_capability: of the CUDA device; which kernel runs depends on it.
        dropout: whether the config's dropout is active (it is in training).
    """

    batch: int
    seq: int
    phase: Literal["train", "prefill", "decode"] = "train"
    precision: Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"] = "fp32"
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "adamw8bit", "adafactor", "lion", "muon"] = "adamw"
    optimizer_step: Literal["foreach", "fused", "loop"] = None  # type: ignore[assignment]  # never None afterwards
    attention: Literal["sdpa", "eager"] = "sdpa"
    checkpoint: Literal["none", "selective", "full"] = "none"
    accumulation: int = 1
    lora: Lora | None = None
    frozen_layers: int = 0
    kv_cache: Literal["model", "int8"] = "model"
    loss: Literal["sum", "cross_entropy", "chunked_cross_entropy"] = "sum"
    device: Literal["cpu", "cuda"] = "cuda"
    compute_capability: tuple[int, int] = (8, 0)
    dropout: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "accumulation"):
            require_size(name, getattr(self, name))
        require_size("frozen_layers", self.frozen_layers, minimum=0)
        if self.optimizer_step is None:
            is_foreach = self.device == "cuda" and self.optimizer != "adafactor"
            object.__setattr__(self, "optimizer_step", "foreach" if is_foreach else "loop")
        for field in fields(self):
            if get_origin(field.type) is Literal:
                require_choice(field.name, getattr(self, field.name), get_args(field.type))
        require_flag("dropout", self.dropout)
        capability = self.compute_capability
        if not isinstance(capability, tuple) or len(capability) != 2:
            raise ConfigError(f"compute_capability must be a pair of whole numbers, (8, 0); got {shown(capability)}")
        for number in capability:
            require_size("a number of compute_capability", number, minimum=0)
        if self.lora is not None:
            require_instance("lora", self.lora, Lora)
            if self.frozen_layers:
                raise ConfigError(
                    f"frozen_layers must be 0 beside lora, which freezes every weight; got {self.frozen_layers}: give "
                    "one of them"
                )
        if self.batch * self.seq > MAX_TOKENS:
            raise ConfigError(f"batch x seq must be at most 2^40 tokens; got {self.batch} x {self.seq}")

    @property
    def query_len(self) -> int:
        """Tokens per text that are computed: all, or in a decode the last one."""
        return 1 if self.phase == "decode" else self.seq

    @property
    def weight_dtype(self) -> str:
        """Dtype of the weights, their gradients and states, as torch spells it."""
        return _DTYPES.get(self.precision, "float32")

    @property
    def autocast_dtype(self) -> str | None:
        """Dtype that autocast casts products to, or None where there is no autocast."""
        return _DTYPES[self.precision.removeprefix("amp-")] if self.precision.startswith("amp-") else None
