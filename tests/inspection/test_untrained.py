import pytest
import torch
import transformers
from torch import nn

import headwise
from headwise.errors import ModelError
from headwise.inspection.roles.untrained import untrained_twin


def llama(**settings):
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 29,
            "hidden_size": 12,
            "intermediate_size": 7,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "num_hidden_layers": 2,
            **settings,
        }
    )
    return transformers.LlamaForCausalLM(config)


def test_a_twin_is_the_stack_of_the_same_shape_with_random_weights_of_its_own():
    model = llama().to(torch.bfloat16).train()
    twin = untrained_twin(model, seed=0)
    assert type(twin) is transformers.LlamaModel
    assert not twin.training
    shapes = {name: (weight.shape, weight.dtype) for name, weight in twin.state_dict().items()}
    assert shapes == {name: (weight.shape, weight.dtype) for name, weight in model.model.state_dict().items()}
    assert not torch.equal(twin.layers[1].self_attn.q_proj.weight, model.model.layers[1].self_attn.q_proj.weight)
    assert twin.config is not model.config


def test_a_seed_gives_one_twin_and_leaves_the_random_numbers_of_others_alone():
    model = llama()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second, other = (untrained_twin(model, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.layers[0].self_attn.k_proj.weight, second.layers[0].self_attn.k_proj.weight)
    assert not torch.equal(first.layers[0].self_attn.k_proj.weight, other.layers[0].self_attn.k_proj.weight)


def test_headwises_own_model_is_built_anew_from_its_config():
    model = headwise.language_model_from_huggingface(llama())
    twin = untrained_twin(model, seed=0)
    assert type(twin) is headwise.LanguageModel
    assert twin.config == model.config
    weights = zip(twin.parameters(), model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in weights)


def test_a_module_without_a_config_is_not_guessed():
    with pytest.raises(ModelError, match="Linear has none that is known: give `untrained`"):
        untrained_twin(nn.Linear(2, 3), seed=0)


class Demanding(transformers.LlamaModel):
    """A class of a user's that wants more than its config."""

    def __init__(self, config, size):
        super().__init__(config)
        self.size = size


def test_a_class_that_wants_more_than_its_config_is_named_with_its_reason():
    with pytest.raises(ModelError, match=r"Demanding cannot be built anew from its config \(TypeError: .*'size'"):
        untrained_twin(Demanding(llama().config, size=5), seed=0)
