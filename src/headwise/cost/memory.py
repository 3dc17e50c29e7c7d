"""Memory of a training step or a prefill, predicted from the config alone: every tensor, and the peak.

A moment of the ledger is a stretch of the step at its worst instant, and holds the tensors that are alive then.
"""

from collections import Counter

from headwise.config.model import ModelConfig
from headwise.cost.reserved import predict_reserved
from headwise.cost.results import Kind, Ledger, LedgerEntry, StepMemory
from headwise.cost.step.play import Play, play_step
from headwise.cost.step.repeat import repeated_step
from headwise.cost.workload import Workload


def predict_ledger(config: ModelConfig, workload: Workload, *, play: Play = play_step) -> Ledger:
    """Return every tensor of a step with its life.

    The step is one of transformers 5.24's implementation under torch 2.13, on full texts without padding, with one
    update in its steady state. With accumulation it is the last pass and the update. A decode is one token against
    transformers' DynamicCache, as earlier tokens have left it: keys and values of one layer are there twice while they
    grow. On CPU, saved tensors are exact to the byte; what kernels take for themselves is not counted. On CUDA the
    kernels' needs are derived from their sources, not measured. Not modelled: an optimizer that steps inside backward,
    offloading to the host, compiled steps, and a scaler of the loss.

    Args:
        config: the model; its `model_type` says whose implementation.
        workload: all of it.
        play: how the step is played, where it is not all of it that one device does (see `sharding`).

    Raises:
        UnsupportedError: no implementation is known for the `model_type`, it or torch lacks what the workload asks for,
            or too many layers do not repeat.
        ConfigError: the loss needs a language-model head, or `lora` a projection, that the config has not; an encoder
            is to decode; or more layers are frozen than there are, or all that could learn.
    """
    step = repeated_step(config, workload, play)
    entries = []
    for life in step.lives:
        for shift in step.shifts(life.layer):
            born, freed = step.span(life.layer, life.born, life.last, shift)
            entry = LedgerEntry(
                name=life.name,
                kind=life.kind,
                bytes=life.bytes,
                shape=life.shape,
                dtype=life.dtype,
                owner=step.owner(life, shift),
                born=born,
                freed=freed,
            )
            entries.append(entry)
    return Ledger(moments=step.moments, entries=tuple(entries))


def predict_step(
    config: ModelConfig, workload: Workload, *, with_reserved: bool = False, play: Play = play_step
) -> StepMemory:
    """Return the totals of `predict_ledger` without its entries: parameters, saved bytes, the peak and its moment.

    Args:
        config: the model.
        workload: as of `predict_ledger`.
        with_reserved: on CUDA, replay all layers' allocations for the bytes that torch's allocator reserves, which
            takes about a millisecond a layer (see `predict_reserved`).
        play: as of `predict_ledger`.

    Raises:
        UnsupportedError, ConfigError: as of `predict_ledger`; with `with_reserved` also for too many layers.
    """
    step = repeated_step(config, workload, play)
    totals: Counter[Kind] = Counter()
    for life in step.lives:
        totals[life.kind] += life.bytes * len(step.shifts(life.layer))
    by_moment = step.bytes_by_moment
    peak_bytes = max(by_moment)
    is_reserved = with_reserved and workload.device == "cuda"
    return StepMemory(
        parameter_bytes=totals["parameter"],
        saved_bytes=totals["saved"],
        peak_bytes=peak_bytes,
        peak_moment=step.moments[by_moment.index(peak_bytes)].split(":")[0],
        reserved_bytes=predict_reserved(config, workload, play) if is_reserved else None,
    )
