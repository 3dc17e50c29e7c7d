"""FLOPs of one optimizer step as it is really run: backward, what kernels and checkpointing compute again, adapters."""

from headwise.config.attention import ALiBi, AttentionConfig
from headwise.config.block import AnyAttention, BlockConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.adapted_flops import AdaptedWork, adapted_work
from headwise.cost.adapters import require_targets
from headwise.cost.flops import (
    around_flops,
    decode_flops,
    input_flops,
    layers_of,
    output_flops,
    require_lengths,
    top_flops,
)
from headwise.cost.frozen_flops import FrozenWork, frozen_work
from headwise.cost.layer_flops import (
    Lengths,
    Work,
    attention_work,
    block_work,
    cross_attention_work,
    linear_backward_extra,
)
from headwise.cost.results import StepFlops
from headwise.cost.step.freezing import makes_embeddings_learn, require_frozen
from headwise.cost.step.layer_kernel import kernel_of
from headwise.cost.step.loss import require_scores
from headwise.cost.workload import Lora, Workload


def step_flops(config: ModelConfig, workload: Workload) -> StepFlops:
    """Count the matrix products of one optimizer step, of a prefill or of a decoded token, by what they are for.

    Backward has two products for each of forward's: one for each factor's gradient. Not so:

    - pixels need no gradient: one product;
    - weights beside adapters need none: one product, and none before the model's first adapter, where the input needs
      no gradient either (it does with "full" checkpoints, for which transformers makes the embeddings need one);
    - frozen layers need none at all, nor do frozen embeddings; a head that is tied to them: one product (with "full"
      checkpoints each product of a frozen layer has one, for the same reason as above);
    - a model without a head trains on its last hidden state: its pooler has no backward;
    - a fused kernel has kept no scores and multiplies queries with keys again: with equal head sizes the attention core
      costs 2.5 x forward in place of 2 x. Layers whose scores get a cap, a sink or ALiBi are reckoned eager, but for
      ours, whose kernel is known;
    - in a linear layer, the triangular system of a chunk is no product forward and one backward, and the first and the
      last state need no gradient.

    Recomputed: "selective": the attention core once more; "full": every layer's forward once more; the chunked loss:
    the output projection once more. This counts whole layers, as torch's checkpoint with reentrance runs them. Without
    reentrance it stops as soon as backward has all it needs, and leaves out a layer's last product where nothing after
    it is kept (a pre-norm layer without dropout).

    Args:
        config: the model.
        workload: `batch`, `seq`, `phase`, `attention`, `checkpoint`, `accumulation`, `lora`, `frozen_layers` and `loss`
            are read, and what decides which kernel runs. The optimizer's own products (Muon's) are not counted.

    Returns:
        The counts of one step, that is of `accumulation` passes forward and backward; of a prefill or a decode, of one
        pass.

    Raises:
        ConfigError: `seq` is not an image's number of tokens, a target of `lora` is no projection of the model, it has
            fewer layers than are frozen, the loss needs a language-model head that the config has not, or an encoder is
            to decode.

    Source: fused backward: Dao 2023, "FlashAttention-2", algorithm 2; checkpointing: Chen et al. 2016, "Training Deep
    Nets with Sublinear Memory Cost"; selective: Korthikanti et al. 2022, section 5; adapters: Hu et al. 2021, "LoRA".
    """
    batch, seq = workload.batch, workload.seq
    require_lengths(config, batch=batch, seq=seq)
    require_scores(config, workload)
    require_targets(config, workload.lora)
    require_frozen(config, workload)
    if workload.phase == "decode":
        token, nothing = decode_flops(config, batch=batch, seq=seq), Work().total
        return StepFlops(forward=token, backward=nothing, recomputed=nothing, model=token, hardware=token)
    inputs, top = input_flops(config, batch=batch), top_flops(config, batch=batch, seq=seq)
    layers, extra, cores = Work(), Work(), Work()
    for block, num_layers, lengths in layers_of(config, batch=batch, seq=seq):
        layers += block_work(block, lengths).repeated(num_layers)
        extra += _backward_extra(config, block, lengths, workload).repeated(num_layers)
        cores += _cores(block, lengths).repeated(num_layers)
    around = around_flops(config, batch=batch)
    outside = Work(weighted=inputs + around + top)
    if workload.phase == "prefill":
        return _to_result(outside + layers, Work(), Work(), model=outside + layers)
    adapters, again = Work(), layers
    if workload.frozen_layers:
        ideal, backward, cores, again = _frozen(config, workload)
    elif workload.lora is not None:
        adapters, adapted, cores = _adapted(config, workload, workload.lora)
        again += adapters
        ideal = outside + layers.scaled(weighted=1, scores=2, values=2) + adapters.repeated(2)
        backward = adapted + Work(weighted=around + (top if config.head else 0))
    else:
        ideal = (outside + layers).repeated(2)
        backward = layers.repeated(2) + extra + Work(weighted=inputs + 2 * around + (2 * top if config.head else 0))
    forward = outside + layers + adapters
    recomputed = {"none": Work(), "selective": cores, "full": again}[workload.checkpoint]
    if workload.loss == "chunked_cross_entropy":
        recomputed += Work(weighted=output_flops(config, batch=batch, seq=seq))
    return _to_result(
        forward.repeated(workload.accumulation),
        backward.repeated(workload.accumulation),
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


def _adapted(config: ModelConfig, workload: Workload, lora: Lora) -> AdaptedWork:
    return adapted_work(
        config,
        _lengths(workload),
        lora,
        embeddings_learn=makes_embeddings_learn(config, workload),
        is_fused=lambda attention, is_cross: _is_fused(config, attention, workload, is_cross=is_cross),
    )


def _frozen(config: ModelConfig, workload: Workload) -> FrozenWork:
    return frozen_work(
        config,
        _lengths(workload),
        workload.frozen_layers,
        embeddings_learn=makes_embeddings_learn(config, workload),
        backward_extra=lambda block, lengths: _backward_extra(config, block, lengths, workload),
        cores=_cores,
    )


def _lengths(workload: Workload) -> Lengths:
    batch, seq = workload.batch, workload.seq
    return Lengths(batch=batch, query_len=seq, key_len=seq, source_len=seq)


def _backward_extra(config: ModelConfig, block: BlockConfig, lengths: Lengths, workload: Workload) -> Work:
    """Count backward's products that are neither of the two for one of forward's."""
    if isinstance(block.attention, LinearAttentionConfig):
        return Work(dense_values=linear_backward_extra(block.attention, lengths))
    scores = Work()
    if _is_fused(config, block.attention, workload):
        scores += attention_work(block.attention, lengths)
    if block.cross_attention is not None and _is_fused(config, block.cross_attention, workload, is_cross=True):
        scores += cross_attention_work(block.cross_attention, lengths)
    return scores.scaled(weighted=0, scores=1, values=0)


def _is_fused(config: ModelConfig, attention: AnyAttention, workload: Workload, *, is_cross: bool = False) -> bool:
    if workload.attention != "sdpa" or isinstance(attention, LinearAttentionConfig):
        return False
    if isinstance(attention, AttentionConfig) and config.model_type != "headwise":
        has_term = attention.sink or attention.softcap is not None or isinstance(attention.position, ALiBi)
        if has_term:
            return False
    return kernel_of(config.model_type, attention, workload, is_cross=is_cross).is_fused


def _cores(block: BlockConfig, lengths: Lengths) -> Work:
    """Count the products between queries, keys, values and output, which selective checkpointing runs again."""
    if isinstance(block.attention, LinearAttentionConfig):
        return Work()
    return block_work(block, lengths).scaled(weighted=0, scores=1, values=1)
