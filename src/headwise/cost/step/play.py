"""play_step: one step of a model on a tape, from its weights to its optimizer."""

from collections.abc import Mapping, Sequence
from math import prod

from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import Run, make_mask
from headwise.cost.step.models import FAMILIES, normalise, project
from headwise.cost.step.tape import Record, Shape, Storage, Tape, Value
from headwise.cost.step.weights import ModelWeights
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

LOSS = "loss"
OPTIMIZER_STEP = "optimizer step"


def play_step(config: ModelConfig, blocks: Sequence[BlockConfig], workload: Workload) -> Tape:
    """Play a training step in its steady state, or a prefill, of `config` with these blocks for its own.

    The loss is the sum of the last hidden state, or of the scores where a head stands on top. Gradients are absent at
    the start (`zero_grad(set_to_none=True)`), optimizer states present.

    Raises:
        UnsupportedError: the config's `model_type` is not among those whose forward pass is known.
    """
    if config.model_type not in FAMILIES:
        raise UnsupportedError(
            f"memory is predicted for model_type {', '.join(FAMILIES)}; got {config.model_type!r}: measure the module"
        )
    tape = Tape(grad_enabled=workload.phase == "train")
    tape.begin("forward: embeddings")
    weights = ModelWeights(tape, config, blocks)
    with tape.owned_by("inputs"):
        ids = tape.new("token ids", (workload.batch, workload.seq), "int64", kind="input")
        buffers = _make_buffers(tape, config)
    loss = _play_forward(tape, config, blocks, workload, weights, ids, buffers)
    if loss is not None:
        tape.backward(loss)
        _play_optimizer(tape, workload)
    return tape


def _make_buffers(tape: Tape, config: ModelConfig) -> dict[str, Value]:
    """Make the tensors that the model holds besides its weights."""
    shapes: dict[str, tuple[Shape, str]] = {}
    if config.model_type == "bert":
        shapes = dict.fromkeys(("position ids", "token types"), ((1, config.max_positions), "int64"))
    elif config.blocks[0].attention.position is not None:
        half = (config.blocks[0].attention.head_dim // 2,)
        shapes = dict.fromkeys(("rotary frequencies", "original rotary frequencies"), (half, "float32"))
    if config.model_type == "gemma":
        shapes["embedding scale"] = ((), "float32")
    return {name: Value(shape, tape.new(name, shape, dtype, kind="input")) for name, (shape, dtype) in shapes.items()}


def _play_forward(
    tape: Tape,
    config: ModelConfig,
    blocks: Sequence[BlockConfig],
    workload: Workload,
    weights: ModelWeights,
    ids: Storage,
    buffers: Mapping[str, Value],
) -> Value | None:
    family = FAMILIES[config.model_type]
    run = Run(tape, workload, config.model_type)
    with tape.owned_by("embeddings"):
        x = family.embed(run, config, weights.top, ids, buffers)
        for block in blocks:
            if block.attention.mask not in run.masks:
                run.masks[block.attention.mask] = make_mask(run, block.attention)
    for index, block in enumerate(blocks):
        tape.begin(f"forward: layer {index}")
        run.layer = f"layer {index}"
        x = family.layer(run, block, weights.layers[index], x)
    tape.begin("forward: head")
    with tape.owned_by("head"):
        result = _play_head(run, config, weights.top, x)
    del x
    tape.begin(LOSS)
    if workload.phase == "prefill":
        return None
    with tape.owned_by("head"):
        return ops.total("loss", result[0])


def _play_head(run: Run, config: ModelConfig, weights: Mapping[str, Value], x: Value) -> tuple[Value, ...]:
    """Return what the loss reads, then what else the model returns."""
    head = config.head
    if config.final_norm:
        x = normalise("last hidden state", x, weights, "final norm", adds_one=config.model_type == "gemma")
    pooled = None
    if config.pooler:
        batch, _, width = x.shape
        pooled = ops.tanh("pooled state", project("pooler output", ops.view(x, (batch, width)), weights, "pooler"))
    run.leave_body()
    if head is None:
        return (x,) if pooled is None else (x, pooled)
    states = x if head.per_token or pooled is None else pooled
    if head.transform:
        states = project("transform output", states, weights, "transform")
        states = ops.activation("transform, active", states, config.blocks[0].feed_forward.activation)
        states = normalise("transform, normed", states, weights, "transform norm")
    states = run.dropout("head input", states, head.dropout_p)
    return (project("output scores", states, weights, "output"),)


def _play_optimizer(tape: Tape, workload: Workload) -> None:
    """Play the optimizer's step: AdamW works tensor by tensor on CPU, on all tensors at once on CUDA."""
    tape.begin(OPTIMIZER_STEP)
    if workload.optimizer == "sgd":
        return
    trained = {(gradient.record.owner, gradient.record.name) for gradient in tape.gradients}
    parameters = [
        record
        for record in tape.records
        if record.kind == "parameter" and (record.owner, f"gradient of {record.name}") in trained
    ]
    roots: list[Storage] = []
    for parameter in parameters:
        with tape.owned_by(parameter.owner):
            roots.append(tape.new(f"root of the second moment of {parameter.name}", parameter.shape))
            if workload.device == "cpu":
                # The denominator of the parameter before is held until this one takes its name.
                _denominator = tape.new(f"denominator of the update of {parameter.name}", parameter.shape)
                roots.clear()


def optimizer_records(gradient: Record, optimizer: str) -> list[Record]:
    """Return the states that an optimizer holds for the parameter of this gradient, from before the step."""
    if optimizer == "sgd":
        return []
    name = gradient.name.removeprefix("gradient of ")
    shapes: tuple[tuple[str, Shape], ...] = (
        ("first moment", gradient.shape),
        ("second moment", gradient.shape),
        ("step count", ()),
    )
    return [
        Record(f"{kind} of {name}", "optimizer", shape, "float32", gradient.owner, 4 * prod(shape), 0)
        for kind, shape in shapes
    ]
