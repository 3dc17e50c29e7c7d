"""The catalogue: every change that is tried, in the order in which several are made one after another."""

from headwise.cost.planning.model_changes import list_model_changes
from headwise.cost.planning.option import Option
from headwise.cost.planning.sharding_changes import list_sharding_changes
from headwise.cost.planning.size_changes import list_size_changes
from headwise.cost.planning.techniques import list_techniques

CATALOGUE: tuple[Option, ...] = (
    *list_techniques(),
    *list_model_changes(),
    *list_sharding_changes(),
    *list_size_changes(),  # last: they change the size by as little as is needed after all others
)
"""Every change, each key once."""
