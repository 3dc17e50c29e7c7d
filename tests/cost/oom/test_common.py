"""Shapes that many models share."""

from headwise.config.presets import preset
from headwise.cost.oom.common import common_tensors
from headwise.cost.parameters import count_parameters


def shapes(tensors, batch=3, seq=5):
    return {(one.birth.name, one.birth.pattern.shape_at(batch, seq)) for one in tensors}


def test_the_common_tensors_of_a_model_are_those_of_its_config():
    config = preset("llama-3-8b")
    assert shapes(common_tensors(config)) == {
        ("attention scores", (3, 32, 5, 5)),
        ("output scores", (3, 5, 128_256)),
        ("hidden states", (3, 5, 4096)),
        ("feed-forward hidden", (3, 5, 14_336)),
        ("cached keys", (3, 8, 5, 128)),
        ("attention mask", (3, 1, 5, 5)),
        ("all weights in one buffer", (count_parameters(config).total,)),
    }


def test_without_a_model_the_sizes_of_all_presets_are_tried_and_the_usual_ones():
    tensors = common_tensors(None)
    found = shapes(tensors)
    assert {
        ("attention scores", (3, 12, 5, 5)),
        ("output scores", (3, 5, 50_304)),
        ("cached keys", (3, 1, 5, 256)),
    } <= found
    twelve = next(one for one in tensors if one.birth.pattern.shape_at(3, 5) == (3, 12, 5, 5))
    assert {"bert-base", "gpt2"} <= set(twelve.models)


def test_the_priors_are_shares_and_sizes_of_more_models_are_likelier():
    tensors = common_tensors(None)
    assert 0.9 < sum(one.prior for one in tensors) <= 1
    by_heads = {one.birth.pattern.shape_at(1, 1)[1]: one for one in tensors if one.birth.name == "attention scores"}
    assert by_heads[32].prior > by_heads[71].prior
