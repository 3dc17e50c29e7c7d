"""What is read of a model beside the statistics that cost little."""

from dataclasses import dataclass

from headwise.config.checks import require_flag, require_instance, require_size, shown
from headwise.errors import ConfigError
from headwise.inspection.relations.relation import Relation
from headwise.inspection.results import Inspection


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What an inspection takes beside statistics that cost little; by default nothing.

    Args:
        costly: also the statistics that cost as much as all others together, or more: `num_keys_for_90_percent`,
            `stable_rank` (a layer is read 6 times more) and the divergence between the heads of a layer.
        across_layers: also the divergence between every two heads of the model; texts of up to 1,024 tokens only.
        top_keys: keys with the largest weights that are kept of every query of the shown text; 8 bytes each.
        overview_cells: cells on a side of a map of the whole shown text, down-sampled; a byte each. 0 = no such map.
        relations: pairs of tokens to look at.
        null: another inspection with the same relations, whose heads stand beside these: of an untrained model, say.

    Raises:
        ConfigError: a count is no whole number from 0 on, a flag no flag, or relations and null are of another type.
    """

    costly: bool = False
    across_layers: bool = False
    top_keys: int = 0
    overview_cells: int = 0
    relations: tuple[Relation, ...] = ()
    null: Inspection | None = None

    def __post_init__(self) -> None:
        require_flag("costly", self.costly)
        require_flag("across_layers", self.across_layers)
        require_size("top_keys", self.top_keys, minimum=0)
        require_size("overview_cells", self.overview_cells, minimum=0)
        if not isinstance(self.relations, tuple | list):
            raise ConfigError(f"relations must be a tuple of Relation; got {shown(self.relations)}")
        for each in self.relations:
            require_instance("each of relations", each, Relation)
        if self.null is not None:
            require_instance("null", self.null, Inspection)


NO_DETAIL = Detail()
