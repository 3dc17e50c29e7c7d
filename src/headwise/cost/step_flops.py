"""FLOPs of one optimizer step as it is really run: backward, what kernels and checkpointing compute again, adapters."""

from headwise.config.attention import ALiBi, AttentionConfig, T5Bias
from headwise.config.block import AnyAttention, BlockConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.adapters import adapter_shapes
from headwise.cost.flops import input_flops, layers_of, require_lengths, top_flops
from headwise.cost.layer_flops import (
    FLOPS_PER_MULTIPLY_ADD,
    Lengths,
    Work,
    attention_work,
    block_work,
    cross_attention_work,
    linear_backward_extra,
)
from headwise.cost.results import StepFlops
from headwise.cost.step.attention import choose_kernel
from headwise.cost.workload import Workload
from headwise.errors import ConfigError


def step_flops(config: ModelConfig, workload: Workload) -> StepFlops:
    """Count the matrix products of one optimizer step, or of a prefill, by what they are for.

    Backward has two products for each of forward's: one for each factor's gradient. Not so:

    - pixels need no gradient, and neither do weights beside adapters: one product;
    - a model without a head trains on its last hidden state: its pooler has no backward;
    - a fused kernel has kept no scores and multiplies queries with keys again: with equal head sizes the attention core
      costs 2.5 x forward in place of 2 x. Layers whose scores get a bias, a cap or a sink are reckoned eager;
    - in a linear layer, the triangular system of a chunk is no product forward and one backward, and the first and the
      last state need no gradient.

    Recomputed: "selective": the attention core once more; "full": every layer's forward once more; the chunked loss:
    the head once more. This counts whole layers, as torch's checkpoint with reentrance runs them. Without reentrance it
    stops as soon as backward has all it needs, and leaves out a layer's last product where nothing after it is kept (a
    pre-norm layer without dropout).

    Args:
        config: the model.
        workload: `batch`, `seq`, `phase`, `attention`, `checkpoint`, `accumulation`, `lora` and `loss` are read, and
            what decides which kernel runs. The optimizer's own products (Muon's) are not counted.

    Returns:
        The counts of one step, that is of `accumulation` passes forward and backward; of a prefill, of one pass.

    Raises:
        ConfigError: `seq` is not an image's number of tokens, or a kind of layer has no target of `lora`.

    Source: fused backward: Dao 2023, "FlashAttention-2", algorithm 2; checkpointing: Chen et al. 2016, "Training Deep
    Nets with Sublinear Memory Cost"; selective: Korthikanti et al. 2022, section 5; adapters: Hu et al. 2021, "LoRA".
    """
    batch, seq = workload.batch, workload.seq
    require_lengths(config, batch=batch, seq=seq)
    inputs, top = input_flops(config, batch=batch), top_flops(config, batch=batch, seq=seq)
    layers, adapters = Work(), Work()
    backward_extra, recomputed = Work(), Work(weighted=top if workload.loss == "chunked_cross_entropy" else 0)
    for block, num_layers, lengths in layers_of(config, batch=batch, seq=seq):
        layer, adapter = block_work(block, lengths), _adapter_work(config, block, workload)
        layers += layer.repeated(num_layers)
        adapters += adapter.repeated(num_layers)
        backward_extra += _backward_extra(block, lengths, workload).repeated(num_layers)
        recomputed += _recomputed(block, layer + adapter, workload).repeated(num_layers)
    forward = Work(weighted=inputs + top) + layers + adapters
    if workload.phase == "prefill":
        return _to_result(forward, Work(), Work(), model=forward)
    weight_gradients = 0 if workload.lora else 1
    two = layers.scaled(weighted=1 + weight_gradients, scores=2, values=2) + adapters.repeated(2)
    backward = two + Work(weighted=weight_gradients * inputs + (1 + weight_gradients) * (top if config.head else 0))
    ideal = two + Work(weighted=(1 + weight_gradients) * (inputs + top))
    return _to_result(
        forward.repeated(workload.accumulation),
        (backward + backward_extra).repeated(workload.accumulation),
        recomputed.repeated(workload.accumulation),
        model=(forward + ideal).repeated(workload.accumulation),
    )


def _to_result(forward: Work, backward: Work, recomputed: Work, *, model: Work) -> StepFlops:
    return StepFlops(
        forward=forward.total,
        backward=backward.total,
        recomputed=recomputed.total,
        model=model.total,
        hardware=(forward + backward + recomputed).total,
    )


def _adapter_work(config: ModelConfig, block: BlockConfig, workload: Workload) -> Work:
    if workload.lora is None or workload.phase == "prefill":
        return Work()
    shapes = adapter_shapes(block, workload.lora, model_type=config.model_type)
    if not shapes:
        raise ConfigError(
            "every kind of layer must have a projection that is a target of lora; "
            f"{config.name} has one with none of {', '.join(workload.lora.targets) or 'no target'}"
        )
    tokens = workload.batch * workload.seq
    widths = sum(inputs + outputs for inputs, outputs in shapes)
    return Work(weighted=FLOPS_PER_MULTIPLY_ADD * tokens * workload.lora.rank * widths)


def _backward_extra(block: BlockConfig, lengths: Lengths, workload: Workload) -> Work:
    """Count backward's products that are neither of the two for one of forward's."""
    if isinstance(block.attention, LinearAttentionConfig):
        return Work(dense_values=linear_backward_extra(block.attention, lengths))
    scores = Work()
    if _is_fused(block.attention, workload):
        scores += attention_work(block.attention, lengths)
    if block.cross_attention is not None and _is_fused(block.cross_attention, workload):
        scores += cross_attention_work(block.cross_attention, lengths)
    return scores.scaled(weighted=0, scores=1, values=0)


def _is_fused(attention: AnyAttention, workload: Workload) -> bool:
    if workload.attention != "sdpa" or isinstance(attention, LinearAttentionConfig):
        return False
    if isinstance(attention, AttentionConfig):
        has_term = attention.sink or attention.softcap is not None or isinstance(attention.position, ALiBi | T5Bias)
        if has_term:
            return False
    kernel, _ = choose_kernel(attention, workload)
    return kernel.is_fused


def _recomputed(block: BlockConfig, layer: Work, workload: Workload) -> Work:
    if workload.checkpoint == "full":
        return layer
    if workload.checkpoint == "selective" and not isinstance(block.attention, LinearAttentionConfig):
        return layer.scaled(weighted=0, scores=1, values=1)
    return Work()
