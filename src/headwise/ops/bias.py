"""The protocol of a bias that is a function, and what a bias comes to in one call."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Bias(Protocol):
    """A term added to the scores that is a function of head and positions, such as ALiBi or T5's table.

    Nobody needs the whole (T, S) table of it: an implementation asks for the part that it works on.

    Attributes:
        tensors: what it reads and may learn, on the device of the call. They reach `__call__` as arguments, so that an
            implementation can take gradients for them wherever it recomputes.
    """

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the bias reads and may learn."""
        ...

    def __call__(
        self,
        batch: Int[Tensor, "..."],
        head: Int[Tensor, "..."],
        query_position: Int[Tensor, "..."],
        key_position: Int[Tensor, "..."],
        *tensors: Float[Tensor, "..."],
    ) -> Float[Tensor, "..."]:
        """Return the term of each pair.

        Args:
            batch: row of the batch, an integer tensor, as the next three, which broadcast together.
            head: query head.
            query_position: position of the query.
            key_position: position of the key; arbitrary for an empty slot.
            tensors: the tensors of the attribute, or what stands in for them.

        Returns:
            float32 or better, of the broadcast shape, or smaller where the term does not look at an argument.
        """
        ...
