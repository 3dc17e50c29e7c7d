"""play_step: one step of a model on a tape, from its weights to its optimizer."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.adapters import require_targets
from headwise.cost.step.attention import make_mask
from headwise.cost.step.autocast import autocasting
from headwise.cost.step.autograd import play_backward
from headwise.cost.step.caching import require_cache
from headwise.cost.step.checkpointing import checkpointed
from headwise.cost.step.freezing import frozen_layers, makes_embeddings_learn, require_frozen
from headwise.cost.step.head import play_head
from headwise.cost.step.inputs import make_buffers, make_inputs
from headwise.cost.step.loss import chunked_cross_entropy, cross_entropy, require_scores, total
from headwise.cost.step.models import family_of
from headwise.cost.step.optimizers import play_optimizer, require_optimizer
from headwise.cost.step.run import Family, Run, Weights
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.cost.step.weights import ModelWeights
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

LOSS = "loss"

MASKS_BY_POSITION = ("bart", "gpt2", "t5")
"""Models that hand a layer its mask by position: a checkpoint saves it, else the layer's closure holds it."""


Play = Callable[[ModelConfig, Sequence[BlockConfig], Workload], Tape]
"""How a step is played: `play_step`, or its like for one device of several."""


def play_step(
    config: ModelConfig,
    blocks: Sequence[BlockConfig],
    workload: Workload,
    *,
    family: Family | None = None,
    make_tape: Callable[..., Tape] = Tape,
) -> Tape:
    """Play a training step in its steady state, or a prefill, of `config` with these blocks for its own.

    The loss "sum" is that of the last hidden state, or of the scores where a head stands on top. Gradients are absent
    at the start (`zero_grad(set_to_none=True)`), optimizer states present. With accumulation it is the last of the
    passes, at whose start all gradients are present, and the optimizer's step.

    Args:
        config, blocks, workload: what is played.
        family: whose forward pass it is, where that has been checked (default: of the config's `model_type`).
        make_tape: a tape for the step, of Tape's arguments.

    Raises:
        UnsupportedError: the config's `model_type` is not among those whose forward pass is known, or torch has no such
            optimizer.
        ConfigError: the loss needs a head that the config has not, or a target of `lora` is no projection of it.
    """
    require_cache(config, workload)
    require_frozen(config, workload)
    family = family or family_of(config, workload)
    require_scores(config, workload)
    require_targets(config, workload.lora)
    require_optimizer(workload)
    is_training = workload.phase == "train"
    tape = make_tape(grad_enabled=is_training, device=workload.device, lora=workload.lora if is_training else None)
    tape.embeddings_learn = is_training and makes_embeddings_learn(config, workload)
    tape.begin("forward: embeddings")
    weights = ModelWeights(tape, config, blocks, family, workload.weight_dtype, num_frozen=frozen_layers(workload))
    with tape.owned_by("inputs"):
        inputs = make_inputs(tape, config, workload)
        ids_shape = (workload.batch, workload.seq)
        labels = tape.new("labels", ids_shape, "int64", kind="input") if workload.loss != "sum" else None
        buffers = make_buffers(tape, config, family)
    # What the run holds is free when the forward pass returns, so nothing here may hold the run.
    loss = _play_forward(Run(tape, workload, family, weights.encoder), config, blocks, weights, inputs, labels, buffers)
    if loss is not None:
        if loss.node is None:
            raise ConfigError(
                f"something of {config.name} must learn; got all of its layers frozen, and nothing above them that "
                "learns: freeze fewer"
            )
        play_backward(tape, loss, accumulates=workload.accumulation > 1)
        play_optimizer(tape, workload)
    tape.last_tick = tape.tick
    return tape


def _play_forward(
    run: Run,
    config: ModelConfig,
    blocks: Sequence[BlockConfig],
    weights: ModelWeights,
    inputs: Weights,
    labels: Storage | None,
    buffers: Weights,
) -> Value | None:
    tape, workload, family = run.tape, run.workload, run.family
    with autocasting(tape, workload.autocast_dtype):
        with tape.owned_by("embeddings"):
            x = family.embed(run, config, weights.top, inputs, buffers)
            for block in blocks:
                if block.attention.mask not in run.masks:
                    mask = make_mask(run, block.attention) if family.makes_masks else None
                    run.masks[block.attention.mask] = mask
        if workload.checkpoint == "full" and config.model_type in MASKS_BY_POSITION:
            for mask in filter(None, run.masks.values()):
                mask.record.is_kept = tape.grad_enabled
        for index, block in enumerate(blocks):
            tape.begin(f"forward: layer {index}")
            run.layer = f"layer {index}"
            x = _play_layer(run, family, block, weights.layers[index], x)
        tape.begin("forward: head")
        last = [x]
        del x  # the head alone holds it, and lets go of it behind the final norm
        with tape.owned_by("head"):
            result = play_head(run, config, weights.top, last.pop())
        if family.finish is not None:
            with tape.owned_by("head"):
                result = (family.finish(run, config, weights.top, inputs, result[0]),)
        tape.begin(LOSS)
        if workload.phase != "train":
            return None
        with tape.owned_by("head"):
            if labels is None:
                return total(result[0])
            if workload.loss == "cross_entropy":
                return cross_entropy(config, result[0], labels)
            return chunked_cross_entropy(config, result[0], weights.top, labels)


def _play_layer(run: Run, family: Family, block: BlockConfig, weights: Weights, x: Value) -> Value:
    mask = block.attention.mask
    if mask in run.angles:
        run.cosine, run.sine = run.angles[mask]
    if run.workload.checkpoint != "full":
        return family.layer(run, block, weights, x)
    # When the layer runs again, the body has returned, and the layer alone holds its mask and angles.
    has_mask = not isinstance(block.attention, LinearAttentionConfig)
    own = replace(run, masks={mask: run.masks[mask]} if has_mask else {}, angles={}, held=[])
    with run.tape.owned_by(run.layer):
        return checkpointed(run.tape, lambda hidden: family.layer(own, block, weights, hidden), x)
