"""Layers that differ have different names, so that no two rows of a table look alike."""

import pytest

from headwise.config.presets import PRESETS, preset
from headwise.cost.layer_kinds import layer_kinds


@pytest.mark.parametrize("name", PRESETS)
def test_kinds_of_layers_have_names_of_their_own(name):
    config = preset(name)
    seq = config.patches.num_tokens if config.patches else 64
    kinds = layer_kinds(config, batch=1, seq=seq)
    assert sum(kind.num_layers for kind in kinds) == config.num_layers + (
        len(config.encoder.blocks) if config.encoder else 0
    )
    assert len({kind.name for kind in kinds}) == len(kinds)


def test_the_layer_that_holds_the_table_of_biases_says_so():
    kinds = layer_kinds(preset("t5-small"), batch=1, seq=8)
    assert [(kind.name, kind.num_layers) for kind in kinds] == [
        ("encoder, full, bias", 1),
        ("encoder, full", 5),
        ("decoder, causal, bias, cross", 1),
        ("decoder, causal, cross", 5),
    ]
