"""Optimizers on a tape: the states that each holds, and what its step needs while it runs.

As torch 2.13 writes SGD (also with momentum), Adam, AdamW, Adafactor and Muon: "foreach" makes each intermediate for
all weights at once, "loop" for one weight at a time, and "fused" makes none. Muon has the loop only, for the matrices
of the layers; AdamW serves all other weights (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
networks"). Two are not in torch:

- Lion holds one moment (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 1). The loop is its
  authors' torch code; foreach and fused are the same algorithm over lists and in one kernel.
- AdamW of 8 bits holds a byte for each number of both moments and a float32 scale for each block of 256; tensors of
  fewer than 4096 numbers keep float32 (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", sections
  2 and 4.3, and bitsandbytes, whose kernel needs nothing beside them).

Numbers that stand alone are not counted, but for the step counts, which live on the device on CPU and where fused.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod

from headwise.cost.step.tape import BYTES_OF_DTYPE, Record, Shape, Storage, Tape
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

OPTIMIZER_STEP = "optimizer step"

BLOCK_SIZE = 256  # numbers that share a scale in 8-bit states
MIN_8BIT_SIZE = 4096  # smaller tensors keep float32 states


def require_optimizer(workload: Workload) -> None:
    """Raise UnsupportedError if torch has no such form of the optimizer."""
    if workload.optimizer == "adafactor" and workload.optimizer_step == "fused":
        raise UnsupportedError("torch's Adafactor has no fused step; give optimizer_step 'loop' or 'foreach'")


def trained_parameters(tape: Tape) -> list[Record]:
    """Return the parameters that backward has given a gradient, in the order of the module's."""
    trained = {(gradient.record.owner, gradient.record.name) for gradient in tape.gradients}
    return [
        record
        for record in tape.records
        if record.kind == "parameter" and (record.owner, f"gradient of {record.name}") in trained
    ]


def optimizer_states(parameter: Record, workload: Workload) -> Iterator[Record]:
    """Give the states that the optimizer holds for a parameter, from before the step."""
    for name, shape, dtype in _states(parameter, workload):
        num_bytes = BYTES_OF_DTYPE[dtype] * prod(shape)
        yield Record(f"{name} of {parameter.name}", "optimizer", shape, dtype, parameter.owner, num_bytes, 0)


def _states(parameter: Record, workload: Workload) -> list[tuple[str, Shape, str]]:  # noqa: PLR0911  one a case
    shape, dtype = parameter.shape, parameter.dtype
    has_step = workload.device == "cpu" or workload.optimizer_step == "fused"
    step: list[tuple[str, Shape, str]] = [("step count", (), "float32")] if has_step else []
    match workload.optimizer:
        case "sgd":
            return []
        case "momentum" | "lion":
            return [("momentum", shape, dtype)]
        case "muon" if _is_hidden_matrix(parameter):
            return [("momentum", shape, dtype)]
        case "adafactor" if len(shape) > 1:
            return [
                ("row variance", _row_shape(parameter), dtype),
                ("column variance", _column_shape(parameter), dtype),
                *step,
            ]
        case "adafactor":
            return [("variance", shape, dtype), *step]
        case "adamw8bit" if prod(shape) < MIN_8BIT_SIZE:
            return [("first moment", shape, "float32"), ("second moment", shape, "float32")]
        case "adamw8bit":
            scales = (-(-prod(shape) // BLOCK_SIZE),)
            moments = ("first moment", "second moment")
            return [
                *((moment, shape, "uint8") for moment in moments),
                *((f"scales of the {moment}", scales, "float32") for moment in moments),
            ]
    return [("first moment", shape, dtype), ("second moment", shape, dtype), *step]


def play_optimizer(tape: Tape, workload: Workload) -> None:
    """Play the step over every parameter that has a gradient, in the order of the module's parameters."""
    tape.begin(OPTIMIZER_STEP)
    parameters = trained_parameters(tape)
    name, step = workload.optimizer, workload.optimizer_step
    if name == "muon":
        _muon_loop(tape, [one for one in parameters if _is_hidden_matrix(one)])
        parameters = [one for one in parameters if not _is_hidden_matrix(one)]
        name = "adamw"
    play = _STEPS.get((name, step))
    if play is not None:
        play(tape, parameters)


def _is_hidden_matrix(parameter: Record) -> bool:
    return len(parameter.shape) == 2 and "layer " in parameter.owner


def _adam_foreach(tape: Tape, parameters: Sequence[Record]) -> None:
    _roots = [_make(tape, "root of the second moment", one) for one in parameters]


def _adam_loop(tape: Tape, parameters: Sequence[Record]) -> None:
    """The denominator of the parameter before is held until the next one takes its name."""
    _denominator = None
    for one in parameters:
        root = _work(tape, "root of the second moment", one)
        _denominator = _work(tape, "denominator of the update", one)
        del root


def _lion_foreach(tape: Tape, parameters: Sequence[Record]) -> None:
    _updates = [_make(tape, "update", one) for one in parameters]


def _lion_loop(tape: Tape, parameters: Sequence[Record]) -> None:
    """`update = momentum * b + gradient * (1 - b)`; the update before is held until the next one takes its name."""
    _update = None
    for one in parameters:
        products = [_work(tape, f"scaled {part}", one) for part in ("momentum", "gradient")]
        _update = _work(tape, "update", one)
        del products


def _adafactor_loop(tape: Tape, parameters: Sequence[Record]) -> None:
    """What one parameter's turn has named is held until the next turn takes the names."""
    _row_means = _column_means = _square = None
    _estimate: Storage | None = None
    for one in parameters:
        if len(one.shape) > 1:
            _row_means = _work(tape, "row means", one, _row_shape(one))
            _column_means = _work(tape, "column means", one, _column_shape(one))
        else:
            _square = _work(tape, "squared gradient", one)
        before = _estimate
        _estimate = _work(tape, "estimated variance", one)
        _average_rows(tape, one)
        del before


def _adafactor_foreach(tape: Tape, parameters: Sequence[Record]) -> None:
    """Matrices and vectors are two groups; the estimates of the first are held to the end."""
    matrices = [one for one in parameters if len(one.shape) > 1]
    vectors = [one for one in parameters if len(one.shape) <= 1]
    estimates: list[Storage] = []
    for group in sorted((matrices, vectors), key=lambda group: group[:1] != parameters[:1]):
        for shape_of in _row_shape, _column_shape:
            _means = [_make(tape, "means", one, shape_of(one)) for one in group if len(one.shape) > 1]
            del _means
        _squares = [_make(tape, "squared gradient", one) for one in group if len(one.shape) <= 1]
        del _squares
        estimates += [_make(tape, "estimated variance", one) for one in group]
        for one in group:
            _average_rows(tape, one)


def _row_shape(parameter: Record) -> Shape:
    return (*parameter.shape[:-1], 1)


def _column_shape(parameter: Record) -> Shape:
    return (*parameter.shape[:-2], 1, parameter.shape[-1])


def _average_rows(tape: Tape, parameter: Record) -> None:
    """A mean of narrow numbers is taken of a float32 copy on CPU."""
    if tape.device == "cpu" and parameter.dtype != "float32" and len(parameter.shape) > 1:
        _work(tape, "row variance, float32", parameter, _row_shape(parameter), "float32")


def _muon_loop(tape: Tape, parameters: Sequence[Record]) -> None:
    """Five turns of Newton and Schulz in bfloat16; the update before is held until the next one takes its name."""
    update = None
    for one in parameters:
        side = (min(one.shape),) * 2
        update = _work(tape, "momentum looked ahead", one)
        narrow = _work(tape, "update", one, dtype="bfloat16") if one.dtype != "bfloat16" else update
        _gram = _polynomial = None
        for _ in range(5):
            _gram = _work(tape, "Gram matrix", one, side, "bfloat16")
            _polynomial = _work(tape, "polynomial of the Gram matrix", one, side, "bfloat16")
            narrow = _work(tape, "update", one, dtype="bfloat16")
        del _gram, _polynomial
        update = narrow
        del narrow


def _make(tape: Tape, name: str, parameter: Record, shape: Shape | None = None) -> Storage:
    """Make what exists for all parameters at once; it belongs to the parameter's owner."""
    with tape.owned_by(parameter.owner):
        return tape.new(f"{name} of {parameter.name}", parameter.shape if shape is None else shape, parameter.dtype)


def _work(tape: Tape, name: str, parameter: Record, shape: Shape | None = None, dtype: str | None = None) -> Storage:
    """Make what exists for one parameter at a time; it belongs to the step, not to a layer."""
    with tape.owned_by(OPTIMIZER_STEP):
        return tape.new(
            f"{name} of {parameter.owner} {parameter.name}",
            parameter.shape if shape is None else shape,
            dtype or parameter.dtype,
        )


_STEPS: dict[tuple[str, str], Callable[[Tape, Sequence[Record]], None]] = {
    ("adam", "foreach"): _adam_foreach,
    ("adam", "loop"): _adam_loop,
    ("adamw", "foreach"): _adam_foreach,
    ("adamw", "loop"): _adam_loop,
    ("adafactor", "foreach"): _adafactor_foreach,
    ("adafactor", "loop"): _adafactor_loop,
    ("lion", "foreach"): _lion_foreach,
    ("lion", "loop"): _lion_loop,
}
"""What a step plays; what is not here needs nothing."""
