"""QuantizedCache: keys and values as whole numbers of 8 or 4 bits, with two scales for each token and head."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from headwise.caches.base import CacheView, Held, KVCache, Lengths, no_tokens_of
from headwise.errors import ConfigError

SCALE_DTYPE = torch.float16  # of two scales behind the codes of each token and head
NUM_SCALE_BYTES = 2 * SCALE_DTYPE.itemsize
LEAST_SCALE, LARGEST_SCALE = 2.0**-24, 65504.0  # above 0, and that float16 has
LARGEST = {8: 127, 4: 7}  # code, by bits


class QuantizedCache(KVCache):
    """Holds the codes of keys and values in another cache, and shows what they stand for.

    `x ~ scale * code`, with `scale = max |x| / L` over either half of the numbers of one token and head, in float16,
    and `code = round(x / scale)` from -L to L, where L = 127 for 8 bits and 7 for 4. Attention over the cache is
    attention over the keys and values that it shows, which are made anew for each call in the dtype that came in.

    Numbers beyond L times 65504, the largest scale (8.3 million for 8 bits, 458 thousand for 4), are shown as this
    bound with their sign, and `relative_error` counts what they lost. A half with an infinity or NaN is shown as NaN.

    Args:
        cache: what holds the codes, empty; its kind says what is kept.
        bits: 8 or 4.

    Raises:
        ConfigError: other bits, a cache that is in use or quantised; (from `update`) 4 bits for heads of an odd size.

    Example:
        >>> cache = QuantizedCache(StaticCache(8192), bits=8)
    """

    def __init__(self, cache: KVCache, *, bits: Literal[8, 4] = 8):
        if isinstance(bits, bool) or bits not in LARGEST:
            raise ConfigError(f"bits must be 8 or 4; got {bits!r}")
        if not isinstance(cache, KVCache) or isinstance(cache, QuantizedCache) or cache.lengths:
            raise ConfigError(f"cache must be an empty cache that is not quantised; got {cache!r}")
        self.cache, self.bits = cache, bits
        self._squares: tuple[Tensor, Tensor] | None = None  # sums of squares: of what came in, and of what it lost
        super().__init__()

    @property
    def keeps_positions(self) -> bool:  # type: ignore[override]
        """As of the other cache."""
        return self.cache.keeps_positions

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens that each row's stream has had."""
        return self.cache.lengths

    @property
    def spare(self) -> int | None:
        """As of the other cache."""
        return self.cache.spare

    @property
    def window_size(self) -> int | None:
        """As of the other cache."""
        return self.cache.window_size

    @property
    def relative_error(self) -> float:
        """Root of the mean square of what was lost, over that of what came in, keys and values together.

        Of all tokens since the cache was made, reset or loaded, also of those cropped since; 0.0 where there are none.
        """
        if self._squares is None:
            return 0.0
        came_in, lost = self._squares
        return float((lost / came_in).sqrt()) if came_in > 0 else 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes of the codes and scales of all tokens held."""
        return self.cache.num_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the memory taken for codes and scales."""
        return self.cache.allocated_bytes

    @property
    def kind(self) -> str:
        """Name of the kind, with that of the other cache."""
        return f"{type(self).__name__} of {self.cache.kind}"

    @property
    def settings(self) -> dict[str, int]:
        """The bits, and what the other cache was built with."""
        return {"bits": self.bits, **self.cache.settings}

    @property
    def spelled(self) -> str:
        """The call that builds a cache like this one, around one like the other."""
        return f"{type(self).__name__}({self.cache.spelled}, bits={self.bits})"

    @property
    def parts(self) -> tuple[KVCache, ...]:
        """The cache itself, and the other."""
        return (self, *self.cache.parts)

    def _take(
        self,
        keys: Tensor,
        values: Tensor,
        after: tuple[int, ...],
        real_tokens: Tensor | None,
        positions: Tensor | None,
    ) -> CacheView:
        codes = [encode(one, self.bits) for one in (keys, values)]
        squares = self._add_squares((keys, values), codes, real_tokens)
        before, as_new = self.lengths, None if self.lengths else vars(self.cache).copy()
        view = self.cache.update(codes[0], codes[1], real_tokens=real_tokens, positions=positions)
        try:
            shown = self._decode(view, (keys.dtype, values.dtype))
        except BaseException:
            self._take_back(before, as_new)
            raise
        self._squares = squares
        return shown

    def _take_back(self, before: tuple[int, ...], as_new: dict[str, Any] | None) -> None:
        """Make the other cache forget tokens that could not be shown."""
        if as_new is not None:
            vars(self.cache).update(as_new)
            return
        try:
            self.cache.crop(before)
        except ConfigError:  # a chunk has been written around the whole ring
            self.cache.reset()

    def view(self) -> CacheView:
        """Return what is held, decoded into new tensors."""
        view = self.cache.view()
        assert self._like is not None
        return self._decode(view, (self._like[0].dtype, self._like[1].dtype))

    def _decode(self, view: CacheView, dtypes: tuple[torch.dtype, torch.dtype]) -> CacheView:
        keys, values = (decode(codes, self.bits, dtype) for codes, dtype in zip(view[:2], dtypes, strict=True))
        return view._replace(keys=keys, values=values)

    def _add_squares(
        self, exact: Sequence[Tensor], codes: Sequence[Tensor], real_tokens: Bool[Tensor, "batch num_tokens"] | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of squares with those of new tokens."""
        came_in = lost = exact[0].new_zeros((), dtype=torch.float32)
        if self._squares is not None:
            came_in, lost = self._squares
        for one, code in zip(exact, codes, strict=True):
            wide = one.float()
            error = wide - decode(code, self.bits, torch.float32)
            if real_tokens is not None:
                wide, error = (part.masked_fill(~real_tokens[:, None, :, None], 0) for part in (wide, error))
            came_in, lost = came_in + wide.square().sum(), lost + error.square().sum()
        return came_in, lost

    def check_crop(self, lengths: Lengths) -> tuple[int, ...]:
        """Return the length of each row after `crop`; raises what the other cache does."""
        return self.cache.check_crop(lengths)

    def crop(self, lengths: Lengths) -> None:
        """Forget all but the first tokens of each stream; raises what the other cache does."""
        self.cache.crop(lengths)

    def reset(self) -> None:
        """Forget everything, and what was lost; memory that is taken stays, as of the other cache."""
        self.cache.reset()
        self._squares = None
        if not self.lengths:
            self._like = None

    def check_reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> list[int]:
        """Return the row that each is to be a copy of after `reorder`; raises what the other cache does."""
        return self.cache.check_reorder(rows)

    def reorder(self, rows: Sequence[int] | Int[Tensor, " new_batch"]) -> None:
        """Make row `i` a copy of what row `rows[i]` was."""
        self.cache.reorder(rows)

    def _check_update(self, keys: Tensor, values: Tensor, real_tokens: Tensor | None, positions: Tensor | None) -> None:
        super()._check_update(keys, values, real_tokens, positions)
        for name, one in (("keys", keys), ("values", values)):
            if self.bits == 4 and one.shape[3] % 2:
                raise ConfigError(
                    f"heads must have an even size for 4 bits, two codes a byte; got {name} of {one.shape[3]}"
                )

    def _hold(self) -> Held:
        return self.cache._hold()

    def _restore(self, held: Held, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
        for codes in held[:2]:
            if codes.dtype != torch.uint8 or 0 < codes.shape[-1] <= NUM_SCALE_BYTES:
                raise ConfigError(
                    f"codes must be bytes, those of two scales behind them; got {codes.shape[-1]} of {codes.dtype}"
                )
        self.cache._restore(held, lengths, torch.uint8)
        keys, values = (decode(no_tokens_of(codes), self.bits, dtype) for codes in held[:2])
        self._like, self._squares = (keys, values), None


def encode(numbers: Float[Tensor, "*shape width"], bits: int) -> UInt8[Tensor, "*shape num_bytes"]:
    """Return the codes of the last dimension's numbers, and behind them the bytes of their two scales."""
    width = numbers.shape[-1]
    if width == 0:  # a cache of joined keys and values has none in the second place
        return numbers.to(torch.uint8)
    half, largest = -(-width // 2), LARGEST[bits]
    halves = functional.pad(numbers.float(), (0, 2 * half - width)).reshape(*numbers.shape[:-1], 2, half)
    exact = halves.abs().amax(-1) / largest
    scale = exact.clamp(LEAST_SCALE, LARGEST_SCALE).where(exact.isfinite(), torch.nan).to(SCALE_DTYPE)
    # Where float16 has rounded the scale down, the largest number would be beyond the largest code.
    code = (halves / scale.float().unsqueeze(-1)).round().clamp(-largest, largest)
    code = code.nan_to_num().flatten(-2)[..., :width]
    if bits == 8:
        packed = code.to(torch.int8).view(torch.uint8)
    else:
        nibbles = (code + 8).to(torch.uint8)
        packed = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    return torch.cat([packed, scale.view(torch.uint8)], dim=-1)


def decode(codes: UInt8[Tensor, "*shape num_bytes"], bits: int, dtype: torch.dtype) -> Float[Tensor, "*shape width"]:
    """Return the numbers that codes stand for."""
    if codes.shape[-1] == 0:
        return codes.to(dtype)
    packed = codes[..., :-NUM_SCALE_BYTES]
    scale = codes[..., -NUM_SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(SCALE_DTYPE).float()
    if bits == 8:
        code = packed.view(torch.int8).float()
    else:
        code = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).float() - 8
    half = -(-code.shape[-1] // 2)
    code[..., :half] *= scale[..., :1]
    code[..., half:] *= scale[..., 1:]
    return code.to(dtype)
