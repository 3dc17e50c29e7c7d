"""Products of a backward pass in which adapters alone learn: what needs a gradient, projection by projection.

A frozen projection has one product in backward, its input's gradient, and none where that input needs no gradient: so
it is in a model's first layers, up to the first adapter. An adapter has two for its second matrix, and for its first
one or two.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.block import AnyAttention, BlockConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.adapters import Projection, Projections, projections_of
from headwise.cost.layer_flops import (
    FLOPS_PER_MULTIPLY_ADD,
    Lengths,
    Work,
    attention_work,
    cross_attention_work,
    feed_forward_flops,
    linear_backward_extra,
)
from headwise.cost.workload import Lora

IsFused = Callable[[AnyAttention, bool], bool]
"""(attention, whether it reads an encoder) -> whether a fused kernel runs, which makes scores again in backward."""


class AdaptedWork(NamedTuple):
    """What adapters add to a forward pass; the backward pass; and the attention cores that have a backward pass."""

    adapters: Work
    backward: Work
    cores: Work

    def plus(self, other: "AdaptedWork") -> "AdaptedWork":
        """Return the sum."""
        return AdaptedWork(self.adapters + other.adapters, self.backward + other.backward, self.cores + other.cores)


NOTHING = AdaptedWork(Work(), Work(), Work())


def adapted_work(
    config: ModelConfig, lengths: Lengths, lora: Lora, *, embeddings_learn: bool, is_fused: IsFused
) -> AdaptedWork:
    """Count what adapters add to a pass over all layers, and its backward, from the first adapter on.

    Args:
        config: the model.
        lengths: of the pass.
        lora: rank and targets.
        embeddings_learn: the first layer's input needs a gradient, as transformers makes it where it checkpoints.
        is_fused: which attentions run on a fused kernel.
    """
    total, source_learns = NOTHING, False
    known: dict[tuple[int, bool], tuple[AdaptedWork, bool]] = {}
    for blocks in (config.encoder.blocks if config.encoder else (), config.blocks):
        learns = embeddings_learn
        for block in blocks:
            key = id(block), learns
            if key not in known:
                layer = _Layer(block, lengths, lora, config.model_type, is_fused, source_learns)
                known[key] = layer.work(learns)
            work, learns = known[key]
            total = total.plus(work)
        source_learns = learns
    return total


class _Layer(NamedTuple):
    block: BlockConfig
    lengths: Lengths
    lora: Lora
    model_type: str
    is_fused: IsFused
    source_learns: bool

    def work(self, learns: bool) -> tuple[AdaptedWork, bool]:
        """Count one layer whose input needs a gradient or not, and tell whether its output does."""
        block, lengths = self.block, self.lengths
        projections = projections_of(block, model_type=self.model_type)
        forward = attention_work(block.attention, lengths)
        fused = self.is_fused(block.attention, False)
        total, attended = self._attention(block.attention, projections.attention, forward, learns, learns, fused)
        after = learns or attended
        if block.cross_attention is not None:
            forward = cross_attention_work(block.cross_attention, lengths)
            fused = self.is_fused(block.cross_attention, True)
            cross, attended = self._attention(
                block.cross_attention, projections.cross_attention, forward, after, self.source_learns, fused
            )
            total, after = total.plus(cross), after or attended
        read = learns if block.parallel else after
        thought, thinks = self._feed_forward(projections.feed_forward, read)
        return total.plus(thought), after or thinks

    def _attention(
        self,
        config: AnyAttention,
        projections: Projections,
        forward: Work,
        learns: bool,
        source_learns: bool,
        is_fused: bool,
    ) -> tuple[AdaptedWork, bool]:
        """Count one attention of a given forward pass; its keys and values are made of the source."""
        before = {name: one for name, one in projections.items() if name != "out_proj"}
        learned = {target for one in before.values() if one.is_target(self.lora) for target in one.targets}
        query = learns or "q_proj" in learned
        key, value = (source_learns or f"{part}_proj" in learned for part in "kv")
        has_core = query or key or value
        scores, values = (3 * has_core, 2 * has_core) if is_fused else (query + key, (query or key) + value)
        backward = forward.scaled(weighted=0, scores=scores, values=values)
        if isinstance(config, LinearAttentionConfig) and learns:
            backward += Work(dense_values=linear_backward_extra(config, self.lengths))
        if learns:  # projections that get no adapter, and read what the layer reads
            backward += Work(weighted=forward.weighted - sum(map(self._product, projections.values())))
        total = AdaptedWork(Work(), backward, forward.scaled(weighted=0, scores=has_core, values=has_core))
        for name, one in before.items():
            reads_source = isinstance(config, AttentionConfig) and name in ("k_proj", "v_proj")
            total = total.plus(self._projection(one, source_learns if reads_source else learns))
        out = projections["out_proj"]
        return total.plus(self._projection(out, has_core)), has_core or out.is_target(self.lora)

    def _feed_forward(self, projections: Projections, learns: bool) -> tuple[AdaptedWork, bool]:
        tokens = self.lengths.batch * self.lengths.query_len
        total, into_learns = NOTHING, learns
        if learns:  # the router, and experts
            forward = feed_forward_flops(self.block.feed_forward, tokens=tokens)
            rest = forward - sum(map(self._product, projections.values()))
            total = AdaptedWork(Work(), Work(weighted=rest), Work())
        for name, one in projections.items():
            if name == "down_proj":
                total = total.plus(self._projection(one, into_learns))
            else:
                total = total.plus(self._projection(one, learns))
                into_learns = into_learns or one.is_target(self.lora)
        return total, learns or _any_target(projections.values(), self.lora)

    def _projection(self, one: Projection, learns: bool) -> AdaptedWork:
        """Count a frozen projection whose input needs a gradient or not, and its adapter if it has one."""
        backward = learns * self._product(one)
        if not one.is_target(self.lora):
            return AdaptedWork(Work(), Work(weighted=backward), Work())
        tokens = self.lengths.batch * self.lengths.query_len
        down, up = (FLOPS_PER_MULTIPLY_ADD * tokens * self.lora.rank * width for width in (one.inputs, one.outputs))
        backward += (1 + learns) * down + 2 * up
        return AdaptedWork(Work(weighted=down + up), Work(weighted=backward), Work())

    def _product(self, one: Projection) -> int:
        return FLOPS_PER_MULTIPLY_ADD * self.lengths.batch * self.lengths.query_len * one.inputs * one.outputs


def _any_target(projections: Iterable[Projection], lora: Lora) -> bool:
    return any(one.is_target(lora) for one in projections)
