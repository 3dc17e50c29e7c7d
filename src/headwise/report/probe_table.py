"""Probed roles as the rows of a table: which heads hold each role, and by how much it is missed where none does."""

from dataclasses import dataclass

from headwise.inspection.roles.results import HeadRole, HeadRoles, RoleProbe

MAX_HEADS = 8  # rows of one role
ABOUT = {
    "previous token": "reads the token before",
    "next token": "reads the token after",
    "fixed offset": "reads the token a fixed number of places away, by the offset that suits the head best",
    "self": "reads the token itself",
    "first token": "reads the first token: a sink",
    "separator": "reads separators such as [SEP]",
    "punctuation": "reads punctuation",
    "same token": "reads where the same token came before or comes again",
    "induction": "reads the token that came after the same token earlier",
    "duplicate": "reads where the same token stood earlier, on random tokens that come twice",
    "uniform": "reads all visible keys alike",
    "rare word": "reads the rarest word of the text",
}


@dataclass(frozen=True, kw_only=True)
class HeldRole:
    """One role with the heads that hold it.

    Args:
        name: of the role.
        about: what such a head does, in a few words.
        threshold: score from which on it can hold.
        heads: those that are shown, the highest score first.
        num_heads: how many hold it.
    """

    name: str
    about: str
    threshold: float
    heads: tuple[tuple[HeadRoles, HeadRole], ...]
    num_heads: int


@dataclass(frozen=True, kw_only=True)
class MissedRole:
    """A role that no head holds, with the head that comes nearest; both None where no query has such a key."""

    name: str
    head: HeadRoles | None
    role: HeadRole | None


def held_roles(probe: RoleProbe) -> list[HeldRole]:
    """Return the roles that heads hold, in the order in which they were probed."""
    groups: dict[str, list[tuple[HeadRoles, HeadRole]]] = {}
    for head, role in probe.held():
        groups.setdefault(role.name, []).append((head, role))
    return [
        HeldRole(
            name=name,
            about=ABOUT.get(name, ""),
            threshold=heads[0][1].threshold,
            heads=tuple(heads[:MAX_HEADS]),
            num_heads=len(heads),
        )
        for name, heads in groups.items()
    ]


def missed_roles(probe: RoleProbe) -> list[MissedRole]:
    """Return the roles that no head holds, each with the head of the highest score."""
    held = {role.name for _, role in probe.held()}
    missed = []
    for name in [role.name for role in probe.heads[0].roles if role.name not in held] if probe.heads else []:
        scored = [(head, head[name]) for head in probe.heads if head[name].score is not None]
        head, role = max(scored, key=lambda pair: pair[1].score or 0.0, default=(None, None))
        missed.append(MissedRole(name=name, head=head, role=role))
    return missed


def why_missed(role: HeadRole) -> str:
    """Return what a score falls short of: the threshold, or one of the nulls."""
    assert role.score is not None
    if role.score < role.threshold:
        return f"below {role.threshold:g}"
    nulls = [("untrained", role.untrained_null), ("shuffled", role.shuffled_null)]
    known = [(null, name) for name, null in nulls if null is not None]
    if not known:
        return "with no null to hold it against"
    null, name = max(known)
    return f"not clear of {null:.2f} {name}"
