"""Parameters of every family that transformers can build: `python -m benchmarks.families [--json] [NAME ...]`.

Each family's default config, cut to two layers, is built without storage. The count by part must add up to the number
of distinct parameters, found by a walk of its own. A family is left out where transformers has no model class for the
config alone (parts of other models), or cannot build its default config (it needs another package, or more settings).
"""

import argparse
import json
import warnings
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

from headwise.cost.running.parameters import count_module_parameters
from headwise.errors import describe

LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks", "depth", "encoder_layers"),
    *("decoder_layers", "num_encoder_layers", "num_decoder_layers"),
)
KEPT_LAYERS = 2


def shorten(config: Any) -> None:
    """Cut a config and those inside it to two layers."""
    for name, value in list(vars(config).items()):
        if name in LAYERS and isinstance(value, int) and value > KEPT_LAYERS:
            setattr(config, name, KEPT_LAYERS)
        elif name == "layer_types" and isinstance(value, list):
            config.layer_types = value[:KEPT_LAYERS]
        elif hasattr(value, "model_type"):
            shorten(value)


def build(family: str) -> nn.Module | None:
    """Build a family's language model, else its bare model, on the meta device; None if it has no class."""
    config = CONFIG_MAPPING[family]()
    shorten(config)
    mapping = next((one for one in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING) if type(config) in one), None)
    if mapping is None:
        return None
    found = mapping[type(config)]
    with torch.device("meta"):
        return (found[0] if isinstance(found, tuple | list) else found)(config)


def count_distinct(module: nn.Module) -> int:
    """Add up the sizes of the distinct parameters that the modules themselves hold."""
    held = {id(one): one for part in module.modules() for one in part._parameters.values() if one is not None}
    return sum(one.numel() for one in held.values())


def check(family: str) -> dict[str, object]:
    """Build a family and compare the two counts."""
    try:
        module = build(family)
    except Exception as error:  # whatever a config or a missing package brings
        return {"family": family, "status": "not built", "why": describe(error)}
    if module is None:
        return {"family": family, "status": "no class"}
    counted, distinct = count_module_parameters(module), count_distinct(module)
    agrees = counted.total == distinct
    return {"family": family, "status": "exact" if agrees else "wrong", "distinct": distinct, **counted.to_dict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("families", nargs="*", metavar="NAME", help="only these; default: all")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # transformers' about defaults
    rows = [check(family) for family in options.families or sorted(CONFIG_MAPPING.keys())]
    statuses = [row["status"] for row in rows]
    totals = {status: statuses.count(status) for status in ("exact", "wrong", "not built", "no class")}
    result = {"versions": {name: version(name) for name in ("torch", "transformers")}, "totals": totals, "rows": rows}
    if options.json:
        print(json.dumps(result))
        return
    for row in rows:
        shown = {key: value for key, value in row.items() if key not in ("family", "status")}
        print(f"{row['family']:<40} {row['status']:<10} {shown or ''}")
    print(totals)


if __name__ == "__main__":
    main()
