"""Data masks that look up what they allow: packed documents, an explicit table of pairs, a table of blocks."""

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.errors import ConfigError
from headwise.masks.cover import Blocks, Cover
from headwise.masks.data import may_look
from headwise.masks.patterns import Mask, require_whole_number

NO_DOCUMENT = -1


class _Between(NamedTuple):
    """Documents of some tokens: whether there are any, and the first and the last one."""

    some: Tensor
    first: Tensor
    last: Tensor


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Each query sees the keys of its own document; several documents are packed into one row, one after another.

    Join it with `Causal()` for a language model. Tokens behind the last document are padding: they see nothing, and
    nobody sees them.

    Args:
        lengths: (num_documents,) whole numbers, the same in every batch row, or (batch, num_documents), where a 0
            stands for no document; on the device of the call.

    Raises:
        ConfigError: lengths are no whole numbers or of another shape; negative (checked where a look at them is free).

    Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.2.
    """

    lengths: Tensor
    _ends: Tensor = field(init=False, repr=False)  # index behind each document

    def __post_init__(self) -> None:
        lengths = _require_whole_tensor("lengths", self.lengths, "(num_documents,) or (batch, num_documents)", (1, 2))
        object.__setattr__(self, "lengths", lengths)
        some = lengths if lengths.shape[-1] else lengths.new_zeros(*lengths.shape[:-1], 1)
        object.__setattr__(self, "_ends", some.cumsum(-1))
        if may_look(lengths) and bool((lengths < 0).any()):
            raise ConfigError(f"lengths must not be negative; got {lengths.tolist()}")

    @classmethod
    def from_segment_ids(cls, segment_ids: Tensor) -> "Documents":
        """Return the mask of rows whose tokens have numbers, equal in one document and its neighbours' different.

        Args:
            segment_ids: (seq_len,) or (batch, seq_len) whole numbers; equal numbers must stand together.

        Raises:
            ConfigError: they are no whole numbers, of another shape, or a number comes again after another one.
        """
        ids = _require_whole_tensor("segment_ids", segment_ids, "(seq_len,) or (batch, seq_len)", (1, 2))
        rows = []
        for row in (ids if ids.ndim == 2 else ids[None]).tolist():
            pieces = [(number, len(list(equal))) for number, equal in groupby(row)]
            if len({number for number, _ in pieces}) != len(pieces):
                raise ConfigError(f"segment_ids must have equal numbers in one piece; got {row}")
            rows.append([length for _, length in pieces])
        most = max(map(len, rows), default=0)
        padded = [row + [0] * (most - len(row)) for row in rows]
        lengths = torch.tensor(padded, dtype=torch.long, device=ids.device).reshape(len(rows), most)
        return cls(lengths if ids.ndim == 2 else lengths[0])

    @property
    def batch_size(self) -> int | None:
        """Number of rows that have documents of their own; None: all have the same."""
        return None if self.lengths.ndim == 1 else self.lengths.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the lengths are."""
        return self.lengths.device

    @property
    def typical_lens(self) -> tuple[int, int]:
        """The longest row."""
        length = max([1, *self.lengths.sum(-1).flatten().tolist()])
        return length, length

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether query and key are of the same document."""
        document = self._document_of(batch, query_index)
        return (document != NO_DOCUMENT) & (document == self._document_of(batch, key_index))

    def cover(self, blocks: Blocks) -> Cover:
        """Look at the documents of both ends: what lies between them is of the documents between them."""
        total = self._end_of(blocks.batch, -1)
        queries, keys = (
            self._documents_between(blocks.batch, first, torch.minimum(last, total - 1))
            for first, last in ((blocks.first_query, blocks.last_query), (blocks.first_key, blocks.last_key))
        )
        shared = (queries.first <= keys.last) & (keys.first <= queries.last)
        is_inside = (blocks.first_query >= 0) & (blocks.last_query < total) & (blocks.last_key < total)
        is_one = (queries.first == queries.last) & (keys.first == keys.last) & (queries.first == keys.first)
        return blocks.known(queries.some & keys.some & shared, is_inside & is_one)

    def _documents_between(self, batch: Any, first: Tensor, last: Tensor) -> "_Between":
        """Return the documents of the tokens from `first` to `last`, of which some may stand before the stream."""
        first = first.clamp(min=0)
        return _Between(first <= last, self._document_of(batch, first), self._document_of(batch, last))

    def _document_of(self, batch: Any, index: Any) -> Tensor:
        """Return which document a token is of, `NO_DOCUMENT` before the first and behind the last one.

        That is the number of documents that end at or before it, found bit by bit: as many steps as the number of
        documents has bits, each of them a look into the table of their ends.
        """
        index = torch.as_tensor(index, device=self._ends.device)
        most = self._ends.shape[-1]
        ended = torch.zeros_like(index)
        for bit in reversed(range(most.bit_length())):
            more = ended + 2**bit
            end = self._end_of(batch, more.clamp(max=most) - 1)
            ended = torch.where((more <= most) & (end <= index), more, ended)
        return torch.where((index < 0) | (ended == most), NO_DOCUMENT, ended)

    def _end_of(self, batch: Any, document: Tensor | int) -> Tensor:
        return self._ends[document] if self._ends.ndim == 1 else self._ends[batch, document]

    def __repr__(self) -> str:
        rows = "" if self.lengths.ndim == 1 else f"{self.lengths.shape[0]} x "
        return f"Documents(<{rows}{self.lengths.shape[-1]} lengths>)"


@dataclass(frozen=True, eq=False, repr=False)
class _Table(Mask):
    """A mask that looks up a (batch or 1, heads or 1, rows, columns) bool table."""

    table: Tensor

    @property
    def batch_size(self) -> int | None:
        """Number of batch rows that the table tells apart; None: all are the same."""
        return None if self.table.shape[0] == 1 else self.table.shape[0]

    @property
    def num_heads(self) -> int | None:
        """Number of heads that the table tells apart; None: all are the same."""
        return None if self.table.shape[1] == 1 else self.table.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self.table.device


@dataclass(frozen=True, eq=False, repr=False)
class Explicit(_Table):
    """What a bool tensor says, pair by pair; True = may attend. It costs the memory of its table.

    Its last row is the query that stands at the end of the keys. Other libraries disagree on whether True keeps or
    drops, hence the name of the door for their 0/1 tensors: `Explicit.from_keep_mask`.

    Args:
        table: bool, broadcastable to (batch, num_heads, query_len, key_len), on the device of the call. One row of keys
            serves every query; rows that differ need a column for each key.

    Raises:
        ConfigError: the table is no bool tensor, or has more than four dimensions or none.
    """

    def __post_init__(self) -> None:
        table = self.table
        if not isinstance(table, Tensor) or table.dtype != torch.bool or not 1 <= table.ndim <= 4:
            kind = f"{table.dtype} of shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
            raise ConfigError(
                "table must be a bool tensor that broadcasts to (batch, num_heads, query_len, key_len), True = may "
                f"attend; got {kind} (for ones and zeros, 1 = keep: Explicit.from_keep_mask)"
            )
        object.__setattr__(self, "table", table.reshape((1,) * (4 - table.ndim) + tuple(table.shape)))

    @classmethod
    def from_keep_mask(cls, keep: Tensor) -> "Explicit":
        """Return the mask of a tensor in which 1 = keep and 0 = drop, as Hugging Face writes attention masks.

        Args:
            keep: whole numbers or bools: (batch, key_len), one row of keys for all queries; or four dimensions, as of
                `table`.

        Raises:
            ConfigError: another number of dimensions, floats, or a number that is neither 0 nor 1.
        """
        shapes = "(batch, key_len) or (batch, num_heads, query_len, key_len)"
        if isinstance(keep, Tensor) and keep.dtype == torch.bool:
            keep = keep.long()
        keep = _require_whole_tensor("a keep mask", keep, shapes, (2, 4))
        others = keep[(keep != 0) & (keep != 1)] if may_look(keep) else keep[:0]
        if others.numel():
            raise ConfigError(f"a keep mask must hold 1 (keep) and 0 (drop) alone; got {int(others[0])}")
        return cls((keep if keep.ndim == 4 else keep[:, None, None, :]) == 1)

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Those of the table; one row of it serves as many queries as there are keys."""
        rows, keys = self.table.shape[2:]
        return keys if rows == 1 else rows, keys

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return what the table says; False outside of it."""
        rows, keys = self.table.shape[2:]
        row = 0 if rows == 1 else query_index - (keys - rows)
        return _look_up(self.table, batch, head, row, 0 if rows == keys == 1 else key_index)

    def cover(self, blocks: Blocks) -> Cover:
        """Read the table, one row of blocks after another."""
        rows, keys = self.table.shape[2:]
        if 0 in self.table.shape:
            nothing = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.device)
            return blocks.known(nothing, nothing)
        if rows == keys == 1:
            return blocks.known(self.table, self.table)
        if rows == 1:
            return blocks.in_rows(self.table, self.table)
        table = self.table.view(torch.uint8)  # torch finds the largest number much faster than any True
        nothing = table.new_zeros(*table.shape[:2], keys)
        any_query, all_queries = [], []
        ends = (ends.flatten().tolist() for ends in (blocks.first_query, blocks.last_query))
        for first, last in zip(*ends, strict=True):
            start, end = (max(0, place - (keys - rows)) for place in (first, last + 1))
            row = table[:, :, start:end]
            any_query.append(row.amax(2) if row.shape[2] else nothing)
            all_queries.append(row.amin(2) if row.shape[2] == last - first + 1 else nothing)
        return blocks.in_rows(torch.stack(any_query, 2).bool(), torch.stack(all_queries, 2).bool())

    def __repr__(self) -> str:
        return f"Explicit(<{' x '.join(map(str, self.table.shape))} bools>)"


@dataclass(frozen=True, eq=False, repr=False)
class BlockSparse(_Table):
    """What a table says of whole blocks of queries and keys; True = every pair of the block may attend.

    Args:
        table: bool, (..., num_query_blocks, num_key_blocks), broadcastable to batch and heads before, on the device of
            the call. A block's number is the index divided by `block_size`.
        block_size: tokens to a side of a block; at least 1.

    Raises:
        ConfigError: the table is no bool tensor of two to four dimensions, or another block size.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 5.4.
    """

    block_size: int

    def __post_init__(self) -> None:
        table = self.table
        if not isinstance(table, Tensor) or table.dtype != torch.bool or not 2 <= table.ndim <= 4:
            kind = f"{table.dtype} of shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
            raise ConfigError(
                f"table must be a bool tensor (..., num_query_blocks, num_key_blocks), True = may attend; got {kind}"
            )
        require_whole_number("block_size", self.block_size, minimum=1)
        object.__setattr__(self, "table", table.reshape((1,) * (4 - table.ndim) + tuple(table.shape)))

    @property
    def typical_lens(self) -> tuple[int, int]:
        """Those of the table."""
        rows, columns = self.table.shape[2:]
        return rows * self.block_size, columns * self.block_size

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return what the table says of the pair's block; False outside of it."""
        return _look_up(self.table, batch, head, query_index // self.block_size, key_index // self.block_size)

    def cover(self, blocks: Blocks) -> Cover:
        """Look up the blocks of the table."""
        return blocks.in_cells(self.allows, self.block_size)

    def __repr__(self) -> str:
        return f"BlockSparse(<{' x '.join(map(str, self.table.shape))} bools>, block_size={self.block_size})"


def _look_up(table: Tensor, batch: Any, head: Any, row: Any, column: Any) -> Tensor:
    """Return entries of a (batch, heads, rows, columns) table, whose first two sizes may be 1; False outside."""
    rows, columns = table.shape[2:]
    row, column = (torch.as_tensor(place, device=table.device) for place in (row, column))
    is_inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    if 0 in table.shape:
        return torch.zeros_like(is_inside)
    batch, head = (0 if size == 1 else place for size, place in zip(table.shape[:2], (batch, head), strict=True))
    found: Tensor = is_inside & table[batch, head, row.clamp(0, rows - 1), column.clamp(0, columns - 1)]
    return found


def _require_whole_tensor(name: str, value: object, shapes: str, dimensions: tuple[int, int]) -> Tensor:
    """Return a tensor of whole numbers as int64, or raise ConfigError."""
    if not isinstance(value, Tensor):
        raise ConfigError(f"{name} must be a tensor of shape {shapes}; got {type(value).__name__}")
    if value.ndim not in dimensions or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ConfigError(
            f"{name} must be whole numbers of shape {shapes}; got {value.dtype} of shape {tuple(value.shape)}"
        )
    return value.long()
