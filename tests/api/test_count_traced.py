"""`headwise.count` of families that have no closed form: the module's own code, without weights and numbers."""

import json

import pytest

import headwise
from headwise.errors import ConfigError, HeadwiseError

GPT_NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 20,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 37,
    "intermediate_size": 30,
    "max_position_embeddings": 41,
    "attention_types": [[["global", "local"], 1]],
}


@pytest.fixture
def config_file(tmp_path):
    def write(content):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(content))
        return path

    return write


def test_an_unknown_family_is_built_without_weights_and_traced(config_file):
    count = headwise.count(config_file(GPT_NEO), batch=2, seq=13)
    width, hidden, tokens = 20, 30, 2 * 13
    weights = 4 * width * width + 2 * width * hidden
    assert count.source_of == "trace"
    # projections (the output's alone has a bias), two feed-forward biases, and two norms a layer
    layer = weights + width + hidden + width + 4 * width
    assert count.parameters.total == 2 * layer + (37 + 41) * width + 2 * width
    products = 2 * (2 * tokens * weights + 2 * 2 * tokens * 13 * width) + 2 * tokens * width * 37
    assert count.flops.forward.dense == products
    assert count.flops.train.dense == 3 * products
    assert count.memory.parameter_bytes == 4 * count.parameters.total
    assert count.memory.peak_bytes > 4 * count.memory.parameter_bytes
    assert count.kv_cache_bytes is None
    assert "gpt_neo" in count.notes[0]


def test_an_image_model_without_a_closed_form_reads_images_of_its_size(config_file):
    content = {"model_type": "deit", "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    content |= {"intermediate_size": 10, "image_size": 8, "patch_size": 4}
    count = headwise.count(config_file(content))
    assert count.flops.forward.dense > 0 and count.memory.saved_bytes > 0


def test_a_known_family_whose_step_has_no_closed_form_is_traced_on_request(config_file):
    path = config_file({"model_type": "bloom", "hidden_size": 24, "n_layer": 2, "n_head": 3, "vocab_size": 37})
    untraced = headwise.count(path, seq=11)
    traced = headwise.count(path, seq=11, trace=True)
    assert untraced.memory is None and "--trace" in untraced.notes[0]
    assert traced.memory.parameter_bytes == 4 * traced.parameters.total
    assert traced.parameters == untraced.parameters and traced.source_of == "config"


def test_what_cannot_be_traced_is_said_and_the_rest_is_told(config_file):
    count = headwise.count(config_file({"model_type": "clip"}))
    assert count.parameters.total > 0
    assert count.memory is None
    assert any("traced" in note for note in count.notes)


def test_a_family_that_transformers_does_not_know_is_refused(config_file):
    with pytest.raises(ConfigError, match="model_type that transformers knows; got 'nobody'"):
        headwise.count(config_file({"model_type": "nobody"}))


@pytest.mark.parametrize("family", ["bart", "pegasus", "t5"])
def test_an_encoder_decoder_without_a_class_is_its_language_model(config_file, family):
    content = {"model_type": family, "vocab_size": 37, "d_model": 12, "d_ff": 10, "d_kv": 4, "num_heads": 3}
    content |= {"num_layers": 1, "num_decoder_layers": 1, "encoder_layers": 1, "decoder_layers": 1}
    content |= {
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 10,
        "decoder_ffn_dim": 10,
    }
    content |= {"max_position_embeddings": 19, "pad_token_id": 0}
    kinds = {"bart": "BartForConditionalGeneration", "pegasus": "PegasusForConditionalGeneration"}
    named = content | {"architectures": [kinds.get(family, "T5ForConditionalGeneration")]}
    without, with_class = (headwise.count(config_file(one), seq=7) for one in (content, named))
    assert without.parameters == with_class.parameters
    assert without.flops.forward.dense == with_class.flops.forward.dense


def test_products_of_unknown_cost_are_named():
    from torch import nn

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Bilinear(3, 3, 2)

        def example_inputs(self, batch, seq):
            import torch

            return {"x": torch.ones(batch, 3)}

        def forward(self, x):
            return self.mix(x, x)

    count = headwise.count(Mixed(), seq=5)
    assert count.flops.train.uncounted == count.flops.forward.uncounted != ()
    assert any(count.flops.forward.uncounted[0] in note for note in count.notes)


def test_a_phase_is_refused_since_a_count_tells_them_all():
    with pytest.raises(HeadwiseError, match="phase must be left out"):
        headwise.count("gpt2", phase="prefill")
