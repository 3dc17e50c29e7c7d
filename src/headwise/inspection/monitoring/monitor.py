"""Watching the attention heads of a model while it trains."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.config.checks import (
    MAX_SEED,
    require_instance,
    require_positive,
    require_probability,
    require_size,
    shown,
)
from headwise.errors import ConfigError, ModelError, UnsupportedError, describe
from headwise.inspection.capture.checked_inputs import require_module
from headwise.inspection.capture.listening import listen
from headwise.inspection.monitoring.alarms import find_alarms
from headwise.inspection.monitoring.heard_passes import HeardPasses
from headwise.inspection.monitoring.layers import HeadAtStep, HeardLayer, heads_at_step, look_at
from headwise.inspection.monitoring.log import open_log
from headwise.inspection.monitoring.real_tokens import (
    readers_of,
    real_targets_of,
    real_tokens_of,
    target_readers_of,
)
from headwise.inspection.monitoring.results import Alarm, MonitorSample
from headwise.integrations.layer_weights import AttentionCall

_logger = logging.getLogger("headwise.monitor")


class AttentionMonitor:
    """Measures what every attention head does in one of `every` training steps, logs it, and warns of trouble.

    In a sampled step the model's own forward pass is listened to: it computes what it always computes, to the bit, with
    its own attention implementation, dropout, autocast and gradient checkpointing. Of each layer `num_rows` queries are
    looked at, drawn anew in each step, uniformly and without replacement from the real tokens of each text: their
    weights are recomputed from queries and keys, before dropout, so that means over them are unbiased estimates of the
    means over all, at a cost that does not grow with the square of the length. With gradient accumulation the first
    micro-batch is looked at; gradients are those of the whole step.

    An error inside the monitor never reaches the training: it is reported once, and the monitor stops.

    Args:
        model: any module that `inspect` can listen to: a Hugging Face model or one that holds it, or a module with
            `nn.MultiheadAttention`s or headwise's layers. It may be wrapped for data parallelism.
        every: steps from one sample to the next; steps 0, every, 2 every, ... are sampled.
        log: where figures go: a TensorBoard `SummaryWriter`, anything with `log(dict)`, a function of a dict, or a list
            of these. Default: nowhere but `sample` and the warnings.
        num_rows: queries to look at in each layer, shared among the texts of a batch; each text gives at least one.
        seed: of the choice of queries; the global random state is not touched.
        collapse_below: share of a uniform head's entropy below which a head counts as collapsed.
        padding_id: token that stands for padding where the model is given no `attention_mask`. Default: that of a
            Hugging Face config.
        warn: called with each warning, a line. Default: the logger "headwise.monitor".

    Attributes:
        sample: the last sample, None before the first.
        alarms: every warning so far, at most one for each head and kind.
        error: what stopped the monitor, None while it runs.

    Raises:
        ModelError: what is no module.
        ConfigError: `every` or `num_rows` is no positive whole number, `seed` or `padding_id` none from 0 on,
            `collapse_below` no share below 1, `warn` no function, `log` nothing that can be logged to.
        UnsupportedError: a model that torch.compile compiled.

    Example:
        >>> monitor = AttentionMonitor(model, every=50, log=print)
        >>> for step, batch in enumerate(batches):
        ...     with monitor.step(step):
        ...         model(**batch).loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> monitor.close()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 50,
        log: Any = None,
        num_rows: int = 128,
        seed: int = 0,
        collapse_below: float = 0.01,
        padding_id: int | None = None,
        warn: Callable[[str], None] = _logger.warning,
    ):
        require_module(model)
        check_settings(
            every=every,
            log=log,
            num_rows=num_rows,
            seed=seed,
            collapse_below=collapse_below,
            padding_id=padding_id,
            warn=warn,
        )
        _refuse_compiled(model)
        self.sample: MonitorSample | None = None
        self.alarms: list[Alarm] = []
        self.error: Exception | None = None
        self._model = model
        self._every = every
        self._log = open_log(log)
        self._num_rows = num_rows
        self._seed = seed
        self._collapse_below = collapse_below
        self._padding_id = padding_id
        self._warn = warn
        self._next = 0
        self._warned: set[tuple[str, int, int, str]] = set()
        self._listening: ExitStack | None = None  # not None while a step is sampled
        self._begin(0)

    @contextmanager
    def step(
        self,
        step: int | None = None,
        *,
        real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
        grad_scale: float = 1.0,
    ) -> Iterator[None]:
        """Watch the forward and backward passes inside, all micro-batches of one optimizer step.

        Args:
            step: as of `before_step`.
            real_tokens: as of `before_step`.
            grad_scale: as of `after_backward`.
        """
        self.before_step(step, real_tokens=real_tokens)
        try:
            yield
        except BaseException:
            self._stop_listening()
            raise
        self.after_backward(grad_scale=grad_scale)

    def before_step(self, step: int | None = None, *, real_tokens: Bool[Tensor, "batch seq_len"] | None = None) -> None:
        """Begin a step; call it before the first forward pass.

        Args:
            step: its number. Default: one more than the last, from 0.
            real_tokens: which tokens of the first micro-batch are no padding. Default: the `attention_mask` that the
                model is called with; else all but the tokens `padding_id` at the ends of a text; else what each layer
                is told. Of a decoder that reads another text: its `decoder_attention_mask`, `decoder_input_ids` or
                `labels` tell.
        """
        self._stop_listening()
        number = self._next
        with self._contained():
            if step is not None:
                require_size("step", step, minimum=0, maximum=MAX_SEED)
                number = step
            if real_tokens is not None:
                require_instance("real_tokens", real_tokens, Tensor)
        self._next = number + 1
        if self.error is None and number % self._every == 0:
            with self._contained():
                self._begin(number, real_tokens)
                _refuse_compiled(self._model)
                exits = self._listening = ExitStack()
                self._passes = HeardPasses(self._model, self._note_inputs)
                exits.callback(self._passes.close)
                exits.enter_context(listen(self._model, self._hear, on_error=self._stop, switches=False))
            if self.error is not None:
                self._stop_listening()

    def after_backward(self, *, grad_scale: float = 1.0) -> None:
        """End a step; call it after the last backward pass, before gradients are clipped, used or zeroed.

        Args:
            grad_scale: what gradients are multiplied by at this moment: `scaler.get_scale()` before `scaler.unscale_`.
        """
        was_listening = self._listening is not None
        self._stop_listening()
        if was_listening and self.error is None:
            with self._contained(), torch.no_grad():
                require_positive("grad_scale", grad_scale)
                self.sample = self._finish(grad_scale)
                self.alarms += self.sample.alarms
                for alarm in self.sample.alarms:
                    self._warn(alarm.to_text())
                self._log(self.sample)

    def close(self) -> None:
        """Stop watching; nothing of the monitor is left on the model."""
        self._stop_listening()

    def _begin(self, step: int, real_tokens: Tensor | None = None) -> None:
        self._step = step
        self._given = real_tokens
        self._real: Tensor | None = None
        self._readers: set[nn.Module] = set()  # the modules that read those tokens
        self._real_target: Tensor | None = None  # of a decoder that reads another text
        self._target_readers: set[nn.Module] = set()
        self._heard: list[HeardLayer] = []
        self._seconds = 0.0

    def _note_inputs(self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        with self._contained():
            self._readers, self._target_readers = readers_of(module), target_readers_of(module)
            self._real_target = real_targets_of(module, args, keywords, padding_id=self._padding_id)
            self._real = self._given
            if self._real is None:
                self._real = real_tokens_of(module, args, keywords, padding_id=self._padding_id)

    def _hear(self, call: AttentionCall) -> None:
        """Measure the heads of one layer, in the midst of the model's forward pass."""
        if self._passes.is_open and self.error is None:
            started = time.perf_counter()
            real = self._real if call.module is None or call.module in self._readers else None
            source = None
            if call.module in self._target_readers:
                real, source = self._real_target, self._real
            seed = hash((self._seed, self._step))
            heard = look_at(self._model, call, real, real_source=source, num_rows=self._num_rows, seed=seed)
            self._heard.append(heard)
            self._seconds += time.perf_counter() - started

    def _finish(self, grad_scale: float) -> MonitorSample:
        """Turn what was heard into a sample."""
        started = time.perf_counter()
        if not self._heard:
            raise ModelError(
                f"the forward pass of {type(self._model).__name__} must run attention that can be heard while it is "
                f"watched; none was heard in step {self._step} (attention of its own, or a graph of torch.compile)"
            )
        found = heads_at_step(self._model, self._heard, grad_scale=grad_scale, collapse_below=self._collapse_below)
        alarms = [alarm for each in found for alarm in self._new_alarms(each)]
        return MonitorSample(
            step=self._step,
            heads=tuple(each.head for each in found),
            alarms=tuple(alarms),
            num_queries=max(layer.num_queries for layer in self._heard),
            seconds=self._seconds + time.perf_counter() - started,
        )

    def _new_alarms(self, found: HeadAtStep) -> Iterator[Alarm]:
        for alarm in find_alarms(
            found.head,
            step=self._step,
            largest_product=found.largest_product,
            dtype=found.dtype,
            collapse_below=self._collapse_below,
        ):
            key = (alarm.stack, alarm.layer, alarm.head, alarm.kind)
            if key not in self._warned:
                self._warned.add(key)
                yield alarm

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Keep every error away from the training."""
        try:
            yield
        except Exception as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        """Note what went wrong and say it once; hooks stay until the step is done, as they may be running."""
        if self.error is None:
            self.error = error
            with suppress(Exception):
                self._warn(f"the attention monitor stopped, training goes on without it: {describe(error)}")

    def _stop_listening(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            with self._contained():
                listening.close()


def check_settings(
    *,
    every: Any = 50,
    log: Any = None,
    num_rows: Any = 128,
    seed: Any = 0,
    collapse_below: Any = 0.01,
    padding_id: Any = None,
    warn: Any = _logger.warning,
) -> None:
    """Refuse settings of `AttentionMonitor` that are none.

    Raises:
        ConfigError: as of `AttentionMonitor`.
    """
    require_size("every", every)
    require_size("num_rows", num_rows)
    require_size("seed", seed, minimum=0, maximum=MAX_SEED)
    require_probability("collapse_below", collapse_below)
    if padding_id is not None:
        require_size("padding_id", padding_id, minimum=0)
    if not callable(warn):
        raise ConfigError(f"warn must be a function of a line; got {shown(warn)}")
    open_log(log)


def _refuse_compiled(model: nn.Module) -> None:
    """Raise UnsupportedError for a model that torch.compile compiled, whole or in part."""
    for part in model.modules():
        if hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None:
            raise UnsupportedError(
                "a model is watched where its layers run one by one, not inside a graph of torch.compile; got a "
                f"compiled {type(getattr(part, '_orig_mod', part)).__name__}: train without compiling it, or watch a "
                "short run that is not compiled"
            )
