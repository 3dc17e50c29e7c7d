"""A learned position table made longer, for texts beyond those that a model was trained on."""

import copy
from typing import Literal

import torch
from torch import nn

from headwise.config.checks import require_choice, require_size
from headwise.config.model import ModelConfig
from headwise.errors import ConfigError
from headwise.nn.classifier import Classifier
from headwise.nn.language_model import LanguageModel
from headwise.nn.transformer import Transformer
from headwise.positions.absolute import LearnedPositions

Lengthen = Literal["clamp", "interpolate"]


def lengthen(module: nn.Module, config: ModelConfig, rows: int, how: Lengthen) -> nn.Module:
    """Return a copy of a model whose learned position table has more rows; the model itself stays as it is.

    A table has no row beyond the trained length. What stands there instead is somebody's choice, and nothing that the
    model learned:

    - "clamp": the last row again and again. Places within the trained length keep their rows; all beyond it are one.
    - "interpolate": the trained rows stretched evenly over the whole, each new one on the straight line between two
      old ones (`LearnedPositions.extend`). Neighbours stand closer than in training, in short texts too.

    Args:
        module: a model of ours with a learned table.
        config: of the model.
        rows: of the new table, at least as many as now.
        how: as above.

    Raises:
        ConfigError: the model has no learned table, fewer rows are asked for, or there is no such way.
    """
    require_choice("how a table is lengthened", how, ("clamp", "interpolate"))
    require_size("rows", rows)
    if not config.position_table_size:
        raise ConfigError(f"a model must have a learned position table to be lengthened; {config.name!r} has none")
    if rows < config.position_table_size:
        raise ConfigError(f"rows must be at least the {config.position_table_size} that the table has; got {rows}")
    longer = copy.deepcopy(module)
    body = longer.body if isinstance(longer, LanguageModel | Classifier) else longer
    assert isinstance(body, Transformer) and isinstance(body.positions, LearnedPositions), "built from the config"
    table = body.positions.table
    body.positions = body.positions.extend(rows)
    if how == "clamp":
        index = torch.arange(rows, device=table.device).clamp(max=len(table) - 1)
        body.positions.table = nn.Parameter(table.detach()[index], requires_grad=table.requires_grad)
    return longer
