import pytest
import torch
import transformers
from torch import nn

from headwise.inspection.monitoring.real_tokens import readers_of, real_by_id, real_tokens_of

IDS = torch.tensor([[5, 0, 6, 7, 0, 0], [0, 0, 5, 6, 0, 7], [5, 6, 7, 8, 9, 4]])
REAL = [[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1] * 6]


class Model(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.config = transformers.BertConfig(**settings)

    def forward(self, input_ids, attention_mask=None):
        return input_ids


def test_padding_stands_at_the_ends_of_texts_alone():
    assert real_by_id(IDS, 0).int().tolist() == REAL


def test_the_first_end_of_text_behind_a_text_is_its_end():
    assert real_by_id(IDS, 0, is_end=True).int().tolist() == [[1, 1, 1, 1, 1, 0], *REAL[1:]]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_mask_goes_before_tokens(by_name):
    mask = torch.ones_like(IDS)
    args = () if by_name else (IDS, mask)
    keywords = {"input_ids": IDS, "attention_mask": mask} if by_name else {}
    assert real_tokens_of(Model(pad_token_id=0), args, keywords, padding_id=None).all()


def test_a_config_names_the_token_of_padding_and_the_caller_may_name_another():
    ids = IDS.masked_fill(IDS == 0, 3)
    assert real_tokens_of(Model(pad_token_id=3), (ids,), {}, padding_id=None).int().tolist() == REAL
    assert real_tokens_of(Model(pad_token_id=0), (ids,), {}, padding_id=3).int().tolist() == REAL
    ends = Model(pad_token_id=3, eos_token_id=3)
    assert real_tokens_of(ends, (ids,), {}, padding_id=None).int().tolist()[0] == [1, 1, 1, 1, 1, 0]


def test_the_config_of_a_wrapped_model_counts():
    ids = IDS.masked_fill(IDS == 0, 3)
    wrapped = nn.Sequential(Model(pad_token_id=3))
    assert real_tokens_of(wrapped, (), {"input_ids": ids}, padding_id=None).int().tolist() == REAL


@pytest.mark.parametrize("arguments", [{}, {"input_ids": torch.zeros(7)}, {"attention_mask": torch.ones(2, 1, 7, 7)}])
def test_nothing_is_known_without_either(arguments):
    assert real_tokens_of(Model(pad_token_id=0), (), arguments, padding_id=None) is None
    assert real_tokens_of(nn.Identity(), (torch.zeros(2, 7), 3), arguments, padding_id=None) is None


def test_of_an_encoder_and_decoder_the_encoder_reads_the_tokens():
    config = transformers.BartConfig(
        vocab_size=5,
        d_model=4,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=3,
        decoder_ffn_dim=3,
    )
    model = transformers.BartModel(config)
    assert readers_of(model) == set(model.encoder.modules())
    assert readers_of(model.encoder) == set(model.encoder.modules())
