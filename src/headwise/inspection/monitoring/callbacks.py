"""The training monitor as a callback of transformers' Trainer and of Lightning, neither of which is imported."""

from collections.abc import Callable
from typing import Any

from headwise.errors import UnsupportedError
from headwise.inspection.monitoring.monitor import AttentionMonitor, check_settings


class _Callback:
    """Holds the settings of the monitor that is made when a training begins; answers all other events with nothing.

    Args:
        every, log, and the other settings: as of `AttentionMonitor`.

    Attributes:
        monitor: of the training that runs or ran last; None before the first.
    """

    def __init__(self, *, every: int = 50, log: Any = None, **settings: Any):
        check_settings(every=every, log=log, **settings)  # so that a mistake is told where it is made
        self.monitor: AttentionMonitor | None = None
        self.settings = {"every": every, "log": log, **settings}

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _close(self) -> None:
        if self.monitor is not None:
            self.monitor.close()


class AttentionTrainerCallback(_Callback):
    """Watches the attention heads of the model that a transformers `Trainer` trains, at one of `every` steps.

    Gradients are taken as the optimizer gets them: after clipping, which scales all heads alike.

    Args:
        every, log, and the other settings: as of `AttentionMonitor`.

    Raises:
        UnsupportedError: (when training begins) the model is, or is to be, compiled.

    Example:
        >>> Trainer(model, args, callbacks=[AttentionTrainerCallback(every=50, log=writer)], train_dataset=texts)
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """Make the monitor."""
        if getattr(args, "torch_compile", False):
            raise UnsupportedError(
                "a model is watched where its layers run one by one, not inside a graph of torch.compile; got "
                "torch_compile=True: train without it, or without the callback"
            )
        self._close()
        self.monitor = AttentionMonitor(model, **self.settings)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin an optimizer step."""
        if self.monitor is not None:
            self.monitor.before_step(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End it, gradients being complete."""
        if self.monitor is not None:
            self.monitor.after_backward()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the monitor off the model."""
        self._close()


class AttentionLightningCallback(_Callback):
    """Watches the attention heads of a `LightningModule` in training, at one of `every` optimizer steps.

    Args:
        every, log, and the other settings: as of `AttentionMonitor`. Without a `log` figures go to the module's own
            `log_dict`.

    Raises:
        UnsupportedError: (when training begins) the model is compiled.

    Example:
        >>> Trainer(callbacks=[AttentionLightningCallback(every=50)])
    """

    state_key = "AttentionLightningCallback"  # of its part in a checkpoint, which holds nothing

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Do nothing."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing to keep."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing back."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the monitor."""

        def log_numbers(values: dict[str, Any]) -> None:
            pl_module.log_dict({name: value for name, value in values.items() if isinstance(value, float)})

        log = self.settings["log"]
        self._close()
        self.monitor = AttentionMonitor(pl_module, **{**self.settings, "log": log_numbers if log is None else log})
        self._step: int | None = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin an optimizer step with the first of its batches."""
        if self.monitor is not None and trainer.global_step != self._step:
            self._step = trainer.global_step
            self.monitor.before_step(self._step)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """End it, gradients being complete, unscaled and not yet clipped."""
        if self.monitor is not None:
            self.monitor.after_backward()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the monitor off the model."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the monitor off the model."""
        self._close()


def _nothing(*_: Any, **__: Any) -> None:
    """Answer an event that the monitor has no use for."""
