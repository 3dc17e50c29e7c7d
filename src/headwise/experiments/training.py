"""Training: one module, one recipe, one step after another; its whole state can be kept and taken up again."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.cost.running.peaks import record_peaks
from headwise.errors import ConfigError, TrainingError
from headwise.experiments.asking import bare
from headwise.experiments.machine import rng_devices
from headwise.experiments.processes import like, whole
from headwise.experiments.recipe import Recipe

Batch = Any
"""What a loss reads: `len(batch)` texts with `batch.num_answers` answers; `batch.take(slice)` returns some of them, and
`batch.to(device)` the same on a device."""

Loss = Callable[[nn.Module, Batch], tuple[Tensor, int]]
"""Returns the sum of the losses of a batch's answers, and how many they are."""

AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step did.

    Args:
        step: its number, from 0.
        loss: mean of the batch's answers, in nats, as it was trained on.
        learning_rate: of the step.
        gradient_norm: 2-norm of all gradients together before clipping.
        clipped: whether they were scaled down.
        finite: whether the gradients were; if not, the weights were left as they were.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    clipped: bool
    finite: bool


class Training:
    """A module in training.

    The batch of a step depends on its number alone, so that a training that is taken up again goes on with the same
    ones. Of several processes (`rank`, `world_size`) each works off its share of every batch; the loss is the mean over
    the answers of the whole batch, in however many parts and processes it is worked off.

    Args:
        module: what is trained; under several processes wrapped in DDP or sharded by FSDP2 already.
        recipe: how.
        loss: of a batch.
        batch_of: returns the batch of a step.
        rank, world_size: which process this is, and of how many.

    Raises:
        ConfigError: the parts of a batch are not alike for all processes.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        *,
        loss: Loss,
        batch_of: Callable[[int], Batch],
        rank: int = 0,
        world_size: int = 1,
    ):
        if recipe.batch_size % (recipe.accumulate * world_size):
            raise ConfigError(
                f"batch_size must be divisible by accumulate x processes = {recipe.accumulate} x {world_size}; got "
                f"{recipe.batch_size}"
            )
        self.module = module
        self.recipe = recipe
        self.loss = loss
        self.batch_of = batch_of
        self.rank = rank
        self.world_size = world_size
        self.device = next(module.parameters()).device
        self.optimizer = torch.optim.AdamW(_parameter_groups(module, recipe), lr=0.0, betas=recipe.betas)
        # float16 alone needs its small gradients scaled up; for the rest the scaler does nothing
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "amp-fp16")
        self.step = 0
        self.num_clipped = 0
        self.num_bad = 0
        self.num_bad_in_a_row = 0

    def take_step(self) -> StepRecord:
        """Do one step and say what it did.

        Raises:
            TrainingError: it was the last of too many steps without finite gradients.
        """
        recipe = self.recipe
        rate = recipe.rate_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(self.batch_of(self.step))
        self.scaler.unscale_(self.optimizer)
        most = torch.inf if recipe.clip_norm is None else recipe.clip_norm
        norm = float(whole(nn.utils.clip_grad_norm_(self.module.parameters(), most)))
        finite = math.isfinite(norm)
        if finite or self.scaler.is_enabled():  # a scaler leaves the step out by itself, and lowers its scale
            self.scaler.step(self.optimizer)
        self.scaler.update()
        record = StepRecord(
            step=self.step,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            clipped=finite and norm > most,
            finite=finite,
        )
        self.step += 1
        self.num_clipped += record.clipped
        self.num_bad += not finite
        self.num_bad_in_a_row = 0 if finite else self.num_bad_in_a_row + 1
        if self.num_bad_in_a_row >= recipe.max_bad_steps:
            raise TrainingError(
                f"{self.num_bad_in_a_row} steps in a row had gradients that were not finite, up to step {record.step}; "
                "lower the learning rate, or warm up longer"
            )
        return record

    def measure_peak(self) -> int:
        """Return the most bytes that forward and backward of the next step take beyond what stands already.

        Gradients are among them, the optimizer is not. All is as it was before: weights, gradients, random numbers.
        """
        batch = self.batch_of(self.step)
        self.module.train()
        forked = torch.random.fork_rng(devices=rng_devices(self.device))
        with forked, record_peaks(self.device) as peaks, peaks.moment("step"):
            self._backward(batch)
        self.optimizer.zero_grad(set_to_none=True)
        return peaks.bytes_by_moment["step"]

    def _backward(self, batch: Batch) -> float:
        """Add up the gradients of a batch, part by part, and return its mean loss."""
        size = len(batch) // (self.recipe.accumulate * self.world_size)
        starts = range(self.rank * size, len(batch), self.world_size * size)
        count = max(1, batch.num_answers)
        total = torch.zeros((), device=self.device)
        for number, start in enumerate(starts):
            part = batch.take(slice(start, start + size)).to(self.device)
            is_last = number == len(starts) - 1
            with self._unsynced(is_last):
                with self._autocast():  # forward alone: what it cast is let go of before backward
                    loss, _ = self.loss(self.module, part)
                # processes average their gradients: each counts as often as there are processes
                self.scaler.scale(loss * (self.world_size / count)).backward()
            total += loss.detach()
        if self.world_size > 1:
            torch.distributed.all_reduce(total)
        mean: float = total.item() / count
        return mean

    def _autocast(self) -> Any:
        dtype = AUTOCAST.get(self.recipe.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def _unsynced(self, is_last: bool) -> Any:
        """Let DDP wait for the last part with its exchange of gradients."""
        no_sync = getattr(self.module, "no_sync", None)
        return nullcontext() if is_last or no_sync is None else no_sync()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all tensors and all numbers from which `restore` goes on bit for bit; all processes must ask."""
        tensors = {f"module.{name}": whole(tensor.detach()) for name, tensor in _tensors_of(self.module).items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": whole(value) for name, value in values.items()}
        for rank, states in enumerate(self._random_states()):
            tensors |= {f"rng.{kind}.{rank}": state for kind, state in states.items()}
        numbers = {
            "step": self.step,
            "num_clipped": self.num_clipped,
            "num_bad": self.num_bad,
            "num_bad_in_a_row": self.num_bad_in_a_row,
            "scaler": self.scaler.state_dict(),
        }
        return tensors, numbers

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Put the training where `state` was taken, in as many processes.

        Raises:
            ConfigError: the state is of another module, or of other processes.
        """
        own = _tensors_of(self.module)
        given = {name.removeprefix("module."): tensor for name, tensor in tensors.items() if name.startswith("module.")}
        if {name: tensor.shape for name, tensor in own.items()} != {n: t.shape for n, t in given.items()}:
            raise ConfigError(
                f"a training goes on with the module that it began with; {type(self.module).__name__} has other tensors"
            )
        before = sum(name.startswith("rng.cpu.") for name in tensors)
        if before != self.world_size:
            raise ConfigError(
                f"a training goes on in as many processes as it began with, {before}; got {self.world_size}"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(like(given[name], tensor))
        parameters = [one for group in self.optimizer.param_groups for one in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "optimizer":
                index, _, name = rest.partition(".")
                # moments lie as their parameters do; the number of steps is one number, which stays where it is
                value = tensor.clone() if tensor.dim() == 0 else like(tensor, parameters[int(index)]).clone()
                state.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.scaler.load_state_dict(numbers["scaler"])
        for name in ("step", "num_clipped", "num_bad", "num_bad_in_a_row"):
            setattr(self, name, numbers[name])
        torch.set_rng_state(tensors[f"rng.cpu.{self.rank}"].cpu())
        cuda = tensors.get(f"rng.cuda.{self.rank}")
        if self.device.type == "cuda" and cuda is not None:  # None: what came before was on a CPU
            torch.cuda.set_rng_state(cuda.cpu(), self.device)

    def _random_states(self) -> list[dict[str, Tensor]]:
        """Return the streams of random numbers of every process."""
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        if self.world_size == 1:
            return [own]
        states: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(states, own)
        return states


def _parameter_groups(module: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the parameters that decay (matrices) and those that do not (biases, norms), each once."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = (
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, a shared one once."""
    own = bare(module)
    return dict(own.named_parameters()) | dict(own.named_buffers())
