"""A pruned copy computes what the whole model does with the same heads at 0."""

import pytest
import torch
from torch import nn

from headwise.config.position import Rotary
from headwise.convert.language_model import language_model_from_huggingface
from headwise.errors import ConfigError, UnsupportedError
from headwise.inspection.ablation.ablate import ablated
from headwise.inspection.ablation.pruned import pruned
from headwise.masks.patterns import Causal
from headwise.nn.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")


def test_a_pruned_layer_is_the_ablated_one():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 6, num_kv_heads=2, mask=Causal(), position=Rotary()).double().eval()
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    gone = [(0, 1), (0, 4)]  # one of each group
    with torch.no_grad(), ablated(layer, gone):
        torch.testing.assert_close(pruned(layer, gone)(tokens), layer(tokens), rtol=0, atol=1e-14)


def test_a_pruned_language_model_is_the_ablated_one_and_the_model_itself_stays():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=53, n_embd=12, n_head=3, n_layer=3, initializer_range=0.5)
    model = language_model_from_huggingface(transformers.GPT2LMHeadModel(config)).double().eval()
    ids = torch.randint(53, (2, 7))
    gone = [(0, 1), (2, 0), (2, 2)]
    with torch.no_grad():
        plain = model(ids)
        smaller = pruned(model, gone)
        with ablated(model, gone):
            expected = model(ids)
        # float64 sums of up to 53 terms of size about 10, through 3 layers
        torch.testing.assert_close(smaller(ids), expected, rtol=0, atol=1e-11)
        assert (expected - plain).abs().max() > 0.01
        assert torch.equal(model(ids), plain)
    sizes = [layer.config.num_heads for layer in smaller.modules() if isinstance(layer, MultiHeadAttention)]
    assert sizes == [2, 3, 1]


def test_what_cannot_be_pruned_is_refused_in_a_line():
    layer = MultiHeadAttention(12, 3)
    with pytest.raises(UnsupportedError, match=r"layer 0 of MultiheadAttention is none: ablate them$"):
        pruned(nn.MultiheadAttention(12, 3), [(0, 1)])
    with pytest.raises(UnsupportedError, match=r"layer 1 of ModuleList is none: ablate them$"):
        pruned(nn.ModuleList([layer, layer]), [(1, 1)])
    with pytest.raises(ConfigError, match="not all of them"):
        pruned(layer, [(0, 0), (0, 1), (0, 2)])
    with pytest.raises(ConfigError, match="heads of layer 0 must be from 0 to 2"):
        pruned(layer, [(0, 3)])
