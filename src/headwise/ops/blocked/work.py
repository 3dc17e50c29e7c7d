"""Work: what is computed for one call, part by part, the same forward and on the way back."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from headwise.masks.rows import block_of
from headwise.masks.visits import Bundles, Parts, most_pairs, parts_of, plan_parts, visits_of
from headwise.ops.blocked.indexed import indexed_layout
from headwise.ops.blocked.part import Part
from headwise.ops.blocked.strip import Strip, can_show
from headwise.ops.call import Call
from headwise.ops.obstacles import is_fake, with_numbers


@dataclass
class Work:
    """A call, and what is visited for it.

    Args:
        call: the call.
        is_fused: a kernel computes each part, else matrix products do.
        learns: gradients are wanted.
        seed: of the dropout, None without it.
        versions: what the call reads that autograd does not watch, with how often it had been changed in place.
    """

    call: Call
    is_fused: bool
    learns: bool = True
    seed: Tensor | int | None = None
    versions: tuple[tuple[Tensor, int], ...] = ()

    @cached_property
    def plan(self) -> Parts:
        """What is visited."""
        call = self.call
        has_bias = call.bias is not None
        if call.has_indices and 0 not in call.sizes:
            max_pairs = most_pairs(call.sizes, is_fused=self.is_fused, has_bias=has_bias)
            bundles = visits_of(indexed_layout(call, block_of(call.sizes)), call.sizes, max_pairs)
            return parts_of(bundles, call.sizes)
        with with_numbers(call):
            return plan_parts(
                call.mask,
                call.sizes,
                is_fused=self.is_fused,
                has_bias=has_bias,
                head_dim=call.key.shape[3],
                learns=self.learns,
                may_show=can_show(call.key) and can_show(call.value),
                known=call.known,
            )

    def laid_out(self, keys: Tensor) -> Tensor:
        """Return keys or values as the parts read them, whose layout a hook on saved tensors may have changed."""
        is_shown = not self.plan.are_strips or can_show(keys)
        return keys if is_shown and not self.plan.gathers else keys.contiguous()

    def parts(self) -> Iterator[Part]:
        """Give what is computed; of a call without numbers, whose memory alone counts, the parts that may take most."""
        yield from self._cut(self.plan.largest() if is_fake(self.call.query) else self.plan.bundles)

    def every_part(self) -> Iterator[Part]:
        """Give all that is visited."""
        yield from self._cut(self.plan.bundles)

    def _cut(self, bundles: Bundles) -> Iterator[Part]:
        sizes, device = self.call.sizes, self.call.query.device
        for visits in bundles:
            is_strip = self.plan.are_strips and len(visits) > 1
            yield Strip(visits, sizes, device) if is_strip else Part(visits, sizes, device)
