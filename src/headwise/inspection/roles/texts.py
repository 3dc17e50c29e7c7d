"""Texts as roles look at them: what each token is, where it stands, and the same texts with their tokens shuffled.

A role is about places (the token before, the first token) or about tokens (separators, an earlier occurrence). Read in
order, the two go together, and a head's weight on the role's keys may come from either: the token before "York" is
"New", the separator stands last, and in a repeated text the first occurrence stands a fixed number of tokens back.
Shuffling parts them. In a shuffled text the keys of a role about places are looked up by the tokens that stood there
before, and those of a role about tokens by the places where they stood: a head that does what the role says loses its
weight there, and one that scored by the other link keeps it.
"""

import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.inspection.roles.keys import KeySet, OneKey, RoleKeys, other_than
from headwise.inspection.texts.batches import pad
from headwise.inspection.texts.windows import Window

FIRST_OFFSET, LAST_OFFSET = 2, 8  # nearer ones are roles of their own: previous, next, self
OFFSETS = tuple(sign * size for size in range(FIRST_OFFSET, LAST_OFFSET + 1) for sign in (-1, 1))
NUM_RARE = 2  # of a text; Voita et al. count how often a head reads one of its two least frequent tokens


def offset_name(offset: int) -> str:
    """Return the name of the role whose key stands a number of tokens after (before, if negative) the query."""
    return f"offset {offset:+d}"


@dataclass(frozen=True, eq=False, kw_only=True)
class RoleTexts:
    """A batch of texts, padded on the right. All but `places` are told of the texts as they were written.

    Args:
        ids: token ids.
        real: False = padding.
        places: which token stands at each place when the text is read: its own number, unless shuffled.
        separators: tokens that stand between or after texts.
        punctuation: tokens of nothing but punctuation.
        rare: the least frequent tokens of each text.
        first_copy: of each token of a repetition, where it stood the first time; -1 for all others.
    """

    ids: Int[Tensor, "batch seq_len"]
    real: Bool[Tensor, "batch seq_len"]
    places: Int[Tensor, "batch seq_len"]
    separators: Bool[Tensor, "batch seq_len"]
    punctuation: Bool[Tensor, "batch seq_len"]
    rare: Bool[Tensor, "batch seq_len"]
    first_copy: Int[Tensor, "batch seq_len"]

    def read_ids(self) -> Int[Tensor, "batch seq_len"]:
        """Return the ids in the order in which they are read."""
        return self.ids.gather(1, self.places)

    def shuffled(self, generator: torch.Generator) -> "RoleTexts":
        """Return the same texts with the tokens of each in a random order, none where it stood."""
        places = self.places.clone()
        for row, length in enumerate(self.real.sum(dim=1).tolist()):
            places[row, :length] = _derange(length, generator)
        return replace(self, places=places)

    def in_batches(self, batch_size: int) -> list["RoleTexts"]:
        """Return the texts in their order, at most so many at a time."""
        parts = {field.name: getattr(self, field.name).split(batch_size) for field in fields(self)}
        return [RoleTexts(**dict(zip(parts, part, strict=True))) for part in zip(*parts.values(), strict=True)]

    def to(self, device: torch.device) -> "RoleTexts":
        """Return the same on a device."""
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self)}
        return RoleTexts(**moved)

    def keys_of_roles(self, rows: Int[Tensor, " rows"]) -> dict[str, RoleKeys]:
        """Return the keys that every role gives the queries at some places."""
        tokens = self.places[:, rows]
        place_of = self.places.argsort(dim=1)
        seq_len = place_of.shape[1]

        def stands(token: Tensor) -> Tensor:
            exists = (token >= 0) & (token < seq_len)
            return torch.where(exists, place_of.gather(1, token.clamp(0, seq_len - 1)), -1)

        queries = rows.expand(len(self.ids), -1)
        first_copy = self.first_copy[:, rows]
        is_same = self.ids[:, None, :] == self.ids[:, rows, None]
        earlier = torch.arange(seq_len, device=rows.device) < rows[:, None]
        return {
            "previous token": OneKey(stands(tokens - 1)),
            "next token": OneKey(stands(tokens + 1)),
            **{offset_name(offset): OneKey(stands(tokens + offset)) for offset in OFFSETS},
            "self": OneKey(queries),
            "first token": OneKey(torch.where(tokens == 0, -1, place_of[:, :1])),
            "separator": other_than(self.separators, rows),
            "punctuation": other_than(self.punctuation, rows),
            "same token": KeySet(is_same & earlier, torch.ones_like(queries, dtype=torch.bool)),
            "rare word": other_than(self.rare, rows),
            "induction": OneKey(torch.where(first_copy < 0, -1, first_copy + 1)),
            "duplicate": OneKey(first_copy),
        }


def batches_of_windows(
    windows: Sequence[Window], *, special_ids: Collection[int], pad_id: int, batch_size: int
) -> list[RoleTexts]:
    """Return windows in batches; frequencies, for rare words, are counted over all of them.

    Of tokens that occur equally often, the one with the higher id is taken for rarer: vocabularies are written from the
    most frequent piece on.

    Args:
        windows: the texts.
        special_ids: tokens that are no part of a text, and so never rare and no punctuation.
        pad_id: what to fill shorter texts of a batch with.
        batch_size: windows of a batch.
    """
    counts = Counter(token for window in windows for token in window.ids)
    return [
        _batch(windows[start : start + batch_size], counts, special_ids, pad_id)
        for start in range(0, len(windows), batch_size)
    ]


def _batch(windows: Sequence[Window], counts: Counter[int], special_ids: Collection[int], pad_id: int) -> RoleTexts:
    ids, kinds = pad(windows, pad_id)
    punctuation, rare = torch.zeros_like(kinds.real), torch.zeros_like(kinds.real)
    for row, window in enumerate(windows):
        own = [index for index, token in enumerate(window.ids) if token not in special_ids]
        punctuation[row, [index for index in own if is_punctuation(window.labels[index])]] = True
        rare[row, sorted(own, key=lambda index: (counts[window.ids[index]], -window.ids[index]))[:NUM_RARE]] = True
    return RoleTexts(
        ids=ids,
        real=kinds.real,
        places=torch.arange(ids.shape[1]).expand(ids.shape),
        separators=kinds.separators,
        punctuation=punctuation,
        rare=rare,
        first_copy=torch.full_like(ids, -1),
    )


def is_punctuation(label: str) -> bool:
    """Tell whether a token's word is nothing but punctuation, as Unicode's general categories P* say."""
    return bool(label) and all(unicodedata.category(sign).startswith("P") for sign in label)


def draw_repeats(
    vocabulary: Int[Tensor, " vocab_size"], *, num_texts: int, num_random: int, first_id: int | None, seed: int
) -> RoleTexts:
    """Return random tokens read twice: `[first + num_random tokens + the same tokens again]`.

    The tokens of one text are uniformly random and all different, so that each has one first occurrence; nothing but
    the repetition can be learnt from them.

    Args:
        vocabulary: ids to draw from, at least `num_random` of them.
        num_texts: how many texts.
        num_random: tokens of one copy.
        first_id: token before the first copy; None = none.
        seed: of the random numbers.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", the head activation evaluators: random tokens
    that are repeated (25 of them four times there; twice here, so that a token has one earlier occurrence).
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = [vocabulary[torch.randperm(len(vocabulary), generator=generator)[:num_random]] for _ in range(num_texts)]
    copy = torch.stack(drawn)
    before = copy.new_full((num_texts, 0 if first_id is None else 1), 0 if first_id is None else first_id)
    ids = torch.cat([before, copy, copy], dim=1)
    index = torch.arange(ids.shape[1])
    first_copy = torch.where(index >= before.shape[1] + num_random, index - num_random, -1)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    return RoleTexts(
        ids=ids,
        real=~nothing,
        places=index.expand_as(ids),
        separators=nothing,
        punctuation=nothing,
        rare=nothing,
        first_copy=first_copy.expand_as(ids),
    )


def _derange(length: int, generator: torch.Generator) -> Tensor:
    """Return a random order that leaves nothing in place; one token alone stays where it is."""
    order = torch.arange(length)
    if length < 2:
        return order
    while True:  # a random order has the property with a chance of about 1/e
        drawn = torch.randperm(length, generator=generator)
        if not (drawn == order).any():
            return drawn
