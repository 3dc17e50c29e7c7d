"""RingTape: each device has a part of every text's tokens, and keys and values of the others pass by.

This is torch's context parallelism with the method "alltoall" (its default, "allgather", holds the keys and values of
all devices at once). Forward, each step of the ring joins the keys and values that are there into one buffer, sends it,
and receives the next device's; what the steps give is merged by its logsumexp, in float32. Backward, they pass once
more, and with them their gradients, which are float32 too. Derived from sources; torch has it for CUDA's kernels alone.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers", section 3; torch 2.13,
distributed/tensor/experimental/_context_parallel/_attention.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from headwise.cost.step.sends import SendingTape
from headwise.cost.step.tape import BYTES_OF_DTYPE, Shape, Value


@dataclass
class RingTape(SendingTape):
    """A tape whose fused attention reads the keys and values of other devices too.

    Args:
        num_devices: around the ring.
    """

    num_devices: int = 1

    def apply(self, name: str, shape: Shape, *, fresh: Sequence[Value] = (), **keywords: Any) -> Value:
        """Run one operation; around attention hold what is in flight."""
        if name != "attention output" or len(fresh) < 3:  # a product of weights and values has the name too
            return super().apply(name, shape, fresh=fresh, **keywords)
        query, key, value = fresh[:3]
        pair = (prod(key.shape) + prod(value.shape),)
        _passing = [
            *(self.new(f"keys and values, {how}", pair, key.dtype) for how in ("contiguous", "sent", "received")),
            *(self.new(f"attention output, {how}", shape) for how in ("merged so far", "merged")),
        ]
        pair_bytes = pair[0] * BYTES_OF_DTYPE[key.dtype]
        self.send("keys and values", "ring", (self.num_devices - 1) * pair_bytes)
        if any(one.node is not None for one in fresh):
            self.send_in_backward("keys and values, for backward", "ring", (self.num_devices - 1) * pair_bytes)
            self.send_in_backward("gradients of keys and values", "ring", self.num_devices * pair[0] * 4)
        # Backward has the same pairs, as many of their gradients (added up, sent, received), and two of the queries'.
        own = keywords.pop("workspace_bytes", 0)
        passing = 3 * pair[0] * (BYTES_OF_DTYPE[key.dtype] + 4) + 2 * prod(query.shape) * 4
        return super().apply(name, shape, fresh=fresh, workspace_bytes=own + passing, **keywords)
