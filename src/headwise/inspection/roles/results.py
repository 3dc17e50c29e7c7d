"""What a probe of roles answers with: each role's score, what it is held against, and what is behind it."""

from dataclasses import dataclass

from headwise.results import Result

MAX_LISTED = 40


@dataclass(frozen=True, kw_only=True)
class RoleExample(Result):
    """The query that puts most on a role's key, with that key.

    Args:
        text: number of the text (of the windows or random texts that were read), from 0.
        query_index, key_index: where the two tokens stand in it.
        query, key: the words that they stand for.
        weight: of the query on the key.
    """

    text: int
    query_index: int
    key_index: int
    query: str
    key: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class HeadRole(Result):
    """How far a head plays one role, and whether that says something about the head.

    Args:
        name: of the role.
        offset: of a fixed offset, the best one: how many tokens after the query its key stands (before, if negative).
        score: mean weight that queries put on the role's keys; of "uniform", the share of weight that lies where a
            uniform head would lay it. None: no query has such a key.
        untrained_null: the highest score of any head of the same architecture with random weights; None: not known.
        shuffled_null: the head's score on the shuffled texts; None: shuffling says nothing about the role.
        threshold: score from which on the role can hold.
        holds: whether the score is at least the threshold and clearly above both nulls.
        num_queries: queries that the score is over.
        largest_share: share of them whose largest weight is on one of the role's keys; None for "uniform".
        example: the clearest pair; None for "uniform" and where no query has a key.
    """

    name: str
    offset: int | None
    score: float | None
    untrained_null: float | None
    shuffled_null: float | None
    threshold: float
    holds: bool
    num_queries: int
    largest_share: float | None
    example: RoleExample | None

    @property
    def null(self) -> float | None:
        """Return the higher of the two nulls, or None where there is none."""
        return max((null for null in (self.untrained_null, self.shuffled_null) if null is not None), default=None)

    @property
    def label(self) -> str:
        """Return the role's name, with the offset of a fixed one."""
        return self.name if self.offset is None else f"{self.name} {self.offset:+d}"


@dataclass(frozen=True, kw_only=True)
class HeadRoles(Result):
    """All roles of one head; `head["induction"]` is one of them."""

    layer: int
    head: int
    roles: tuple[HeadRole, ...]

    def __getitem__(self, name: str) -> HeadRole:
        """Return the role of that name.

        Raises:
            KeyError: there is no such role; the text names those there are.
        """
        by_name = {role.name: role for role in self.roles}
        if name not in by_name:
            raise KeyError(f"there is no role {name!r}; there are {', '.join(by_name)}")
        return by_name[name]


@dataclass(frozen=True, kw_only=True)
class RoleProbe(Result):
    """The roles of all heads of a model.

    Args:
        heads: one per layer and head, layer by layer.
        num_windows, num_tokens: texts (in windows) that most roles were read on, and the tokens in them; 0 = none, then
            all roles were read on the random ones.
        window: the longest of them, special tokens included; 0 = none.
        num_repeats, num_random: random texts that induction and duplicates were read on, and the tokens of one copy.
        seed: of random texts, shuffles and random weights.
        notes: what a reader must know: no untrained model to compare with, windows.
        stack: the stack of layers that was probed, where the model has several.
    """

    heads: tuple[HeadRoles, ...]
    num_windows: int
    num_tokens: int
    window: int
    num_repeats: int
    num_random: int
    seed: int
    notes: tuple[str, ...] = ()
    stack: str | None = None

    def head(self, layer: int, head: int) -> HeadRoles:
        """Return one head.

        Raises:
            KeyError: there is no such head.
        """
        for each in self.heads:
            if (each.layer, each.head) == (layer, head):
                return each
        raise KeyError(f"there is no head {head} in layer {layer} of {len(self.heads)} heads")

    def held(self) -> list[tuple[HeadRoles, HeadRole]]:
        """Return every role that a head holds, role by role, the highest score first."""
        held = [(head, role) for head in self.heads for role in head.roles if role.holds]
        names = [role.name for role in self.heads[0].roles]
        return sorted(held, key=lambda pair: (names.index(pair[1].name), -(pair[1].score or 0.0)))

    def to_text(self) -> str:
        """Return the roles that heads hold, one a line, with both nulls and the clearest pair."""
        held = self.held()
        windows = "1 window" if self.num_windows == 1 else f"{self.num_windows} windows"
        prose = f"{self.num_tokens} tokens in {windows} and " if self.num_windows else ""
        holds = "role holds" if len(held) == 1 else "roles hold"
        heads = f"{len(self.heads)} heads" + ("" if self.stack is None else f" of the stack {self.stack}")
        lines = [
            f"{len(held)} {holds} among {heads}, read on "
            f"{prose}{self.num_repeats} texts of {self.num_random} random tokens that come twice"
        ]
        lines += [_line(head, role) for head, role in held[:MAX_LISTED]]
        if len(held) > MAX_LISTED:
            lines.append(f"and {len(held) - MAX_LISTED} more")
        return "\n".join([*lines, *self.notes])


def _line(head: HeadRoles, role: HeadRole) -> str:
    nulls = [
        f"{name} {null:.2f}"
        for name, null in (("untrained", role.untrained_null), ("shuffled", role.shuffled_null))
        if null is not None
    ]
    line = f"layer {head.layer} head {head.head}: {role.label} {role.score:.2f} ({', '.join(nulls)})"
    if role.largest_share is not None:
        line += f"; largest weight there in {100 * role.largest_share:.0f} % of {role.num_queries} queries"
    if role.example is not None:
        line += f"; {role.example.query!r} reads {role.example.key!r}"
    return line
