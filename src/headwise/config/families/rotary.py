"""Rotary positions in a config.json: one object of settings, or the older keys beside it."""

from collections.abc import Mapping

from headwise.config.attention import Rotary
from headwise.config.checks import require_number, require_positive, shown
from headwise.config.families.rotary_scaling import ROPE_TYPES, read_scaling
from headwise.config.keys import Keys
from headwise.errors import ConfigError

_OLDER_NAMES = {"su": "longrope"}  # what Phi-3's first files call it


def read_rotary(keys: Keys, *, head_dim: int, theta_key: str = "rope_theta", partial_key: str | None = None) -> Rotary:
    """Read the rotary positions that all layers share.

    Args:
        keys: with "rope_parameters", "rope_scaling", "max_position_embeddings" and the two keys named below.
        head_dim: width of a head.
        theta_key: the older key of the base.
        partial_key: the older key of the share of a head that is turned; None: whole heads.
    """
    key = "rope_scaling" if keys.mapping("rope_scaling") else "rope_parameters"
    settings = keys.mapping(key)
    if any(isinstance(value, Mapping) for value in settings.values()):
        raise ConfigError(f"{key} must be one set of values for all layers; got one per layer type")
    factor: object = 1.0
    if partial_key is not None:
        factor = settings.get("partial_rotary_factor")
        factor = keys.positive(partial_key) if factor is None else factor
    theta = settings.get("rope_theta")
    theta = keys.positive(theta_key) if theta is None else theta
    return _rotary(keys, key, settings, theta=theta, share=factor, head_dim=head_dim)


def read_rotary_by_kind(keys: Keys, *, head_dim: int) -> dict[str, Rotary]:
    """Read the rotary positions of each kind of layer, where windowed layers have a base of their own (Gemma 3)."""
    by_kind = keys.mapping("rope_parameters")
    found = {}
    for kind, theta_key in (("full_attention", "rope_theta"), ("sliding_attention", "rope_local_base_freq")):
        settings = by_kind.get(kind)
        settings = {} if settings is None else settings
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{kind} in rope_parameters must be an object with keys; got {shown(settings)}")
        if kind == "full_attention":
            settings = {**settings, **keys.mapping("rope_scaling")}
        theta = settings.get("rope_theta")
        theta = keys.positive(theta_key) if theta is None else theta
        found[kind] = _rotary(keys, "rope_parameters", settings, theta=theta, share=1.0, head_dim=head_dim)
    return found


def _rotary(
    keys: Keys, key: str, settings: Mapping[str, object], *, theta: object, share: object, head_dim: int
) -> Rotary:
    kind_key = "rope_type" if "rope_type" in settings or "type" not in settings else "type"
    kind = settings.get(kind_key, "default")
    kind = _OLDER_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise ConfigError(f"{kind_key} in {key} must be one of {', '.join(ROPE_TYPES)}; got {shown(kind)}")
    if kind == "yarn" and "long_factor" in settings:
        kind = "longrope"  # as some of Phi-3's files name it
    require_positive("rope_theta", theta)
    require_number("partial_rotary_factor", share)
    assert isinstance(share, int | float) and isinstance(theta, int | float)
    if not 0 < share <= 1:
        raise ConfigError(f"partial_rotary_factor must be above 0 and at most 1; got {share}")
    if kind == "proportional":  # its share of the pairs is a number of the rule: frequencies are of the whole head
        share = 1.0
    turned = int(head_dim * share)
    if turned % 2 or not turned:
        raise ConfigError(
            f"the rotary part of a head must be even, since pairs are turned; got {share} of {head_dim} = {turned}"
        )
    if kind == "yarn" and theta <= 1:
        raise ConfigError(f"rope_theta must be above 1 for yarn; got {theta}")
    return Rotary(
        theta=float(theta),
        scaling=read_scaling(kind, key, settings, keys, num_pairs=turned // 2),
        rotary_dim=None if turned == head_dim else turned,
    )
