"""FLOPs of a training step whose first layers are frozen: which products of backward are left, and what runs again."""

from collections.abc import Callable
from typing import NamedTuple

from headwise.config.block import BlockConfig, group_blocks
from headwise.config.model import ModelConfig
from headwise.cost.adapters import projections_of
from headwise.cost.flops import output_flops, top_flops
from headwise.cost.layer_flops import FLOPS_PER_MULTIPLY_ADD, Lengths, Work, block_work

LayerWork = Callable[[BlockConfig, Lengths], Work]
"""(layer, lengths) -> some of its products."""


class FrozenWork(NamedTuple):
    """Of one pass: backward as the mathematics has it and as it is run, and what checkpointing can run again.

    `cores`: attention cores that have a backward; `layers`: forward passes of the layers that have one.
    """

    ideal: Work
    backward: Work
    cores: Work
    layers: Work


def frozen_work(
    config: ModelConfig,
    lengths: Lengths,
    num_frozen: int,
    *,
    embeddings_learn: bool,
    backward_extra: LayerWork,
    cores: LayerWork,
) -> FrozenWork:
    """Count a pass whose embeddings, encoder and first layers are frozen.

    A frozen layer has no backward, unless gradients flow through it to what the embeddings give: then each of its
    products has one, its input's gradient. A layer that learns has two for each, but for projections of what needs no
    gradient: of an encoder's output, and of the first such layer's input where no norm that learns stands between. A
    head that is tied to the frozen embeddings has one.

    Args:
        config: the model.
        lengths: of the pass.
        num_frozen: frozen layers, at least one; of an encoder-decoder, the decoder's.
        embeddings_learn: gradients flow down to what the embeddings give, as transformers makes it where it
            checkpoints.
        backward_extra: backward's products that are neither of the two for one of forward's.
        cores: the products between queries, keys, values and output.
    """
    ideal, backward, all_cores, layers = Work(), Work(), Work(), Work()
    frozen, learning = config.blocks[:num_frozen], config.blocks[num_frozen:]
    if embeddings_learn:
        for block, times in (*(config.encoder.block_groups if config.encoder else ()), *group_blocks(frozen)):
            forward = block_work(block, lengths).repeated(times)
            extra = backward_extra(block, lengths).repeated(times)
            backward += forward.scaled(weighted=1, scores=2, values=2) + extra
            layers += forward
    for block, times in group_blocks(learning):
        forward = block_work(block, lengths).repeated(times)
        ideal += forward.repeated(2)
        backward += forward.repeated(2) + backward_extra(block, lengths).repeated(times)
        if not embeddings_learn:
            backward += Work(weighted=-times * _of_source(block, lengths, config.model_type))
        all_cores += cores(block, lengths).repeated(times)
        layers += forward
    if learning and not embeddings_learn:
        backward += Work(weighted=-_of_input(learning[0], lengths, config.model_type))
    below_learns = embeddings_learn or bool(learning) or config.final_norm
    if config.head is not None:
        backward += Work(weighted=_top(config, lengths, below_learns=below_learns))
    ideal += Work(weighted=_top(config, lengths, below_learns=True))
    return FrozenWork(ideal, backward, all_cores, layers)


def _of_source(block: BlockConfig, lengths: Lengths, model_type: str) -> int:
    """Count the gradients of an encoder's output in a layer that reads it."""
    projections = projections_of(block, model_type=model_type).cross_attention
    numbers = sum(one.inputs * one.outputs for name, one in projections.items() if name in ("k_proj", "v_proj"))
    return FLOPS_PER_MULTIPLY_ADD * lengths.batch * lengths.source_len * numbers


def _of_input(block: BlockConfig, lengths: Lengths, model_type: str) -> int:
    """Count the gradients of a layer's input in its attention, unless a norm stands between."""
    if block.norm_placement in ("pre", "both"):
        return 0
    projections = projections_of(block, model_type=model_type).attention
    numbers = sum(one.inputs * one.outputs for name, one in projections.items() if name != "out_proj")
    return FLOPS_PER_MULTIPLY_ADD * lengths.batch * lengths.query_len * numbers


def _top(config: ModelConfig, lengths: Lengths, *, below_learns: bool) -> int:
    """Count the backward of pooler and head: a product for the weights, and one for what they read if that learns."""
    output = output_flops(config, batch=lengths.batch, seq=lengths.query_len)
    rest = top_flops(config, batch=lengths.batch, seq=lengths.query_len) - output
    is_tied = config.head is not None and config.head.tied
    return (1 + below_learns) * rest + (not is_tied) * output + (below_learns or rest > 0) * output
