"""What a reference, a layer or a module that is called twice means to ablation and importance."""

import pytest
import torch
import transformers
from torch import nn

import headwise
from headwise.inspection.roles.sources import random_repeats, read_vocabulary
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.stable_rank import stable_ranks
from headwise.integrations.layer_weights import GivenWeights

IDS = torch.randint(4, 19, (1, 7), generator=torch.Generator().manual_seed(1))


def test_padding_of_a_decoder_is_what_its_own_mask_says():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=19,
        d_model=12,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=7,
        decoder_ffn_dim=7,
        max_position_embeddings=16,
    )
    model = transformers.BartModel(config).eval()
    plain = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    padded = {
        "input_ids": IDS,
        "decoder_input_ids": torch.cat([IDS[:, :5], torch.full((1, 4), 17)], dim=1),
        "decoder_attention_mask": torch.tensor([[1] * 5 + [0] * 4]),
    }
    outputs = []
    for reference in (plain, padded):
        with torch.no_grad(), headwise.ablated(model, [(0, 1)], "mean", reference=reference, stack="decoder"):
            outputs.append(model(**plain).last_hidden_state)
    # the same means of five tokens, of passes of other shapes: products may be summed up in another order
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-5)


class Twice(nn.Module):
    """Reads two tokens' worth of text with one layer, in two calls."""

    def __init__(self, num_layers=1):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(headwise.MultiHeadAttention(12, 3) for _ in range(num_layers))

    def forward(self, x, y):
        for layer in self.layers:
            x, y = x + layer(x), y + layer(y)
        return x.sum() + 2.0 * y.sum()


def test_a_head_that_is_called_twice_has_the_importance_of_both_calls():
    model = Twice().double().eval()
    x, y = torch.randn(2, 1, 5, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = headwise.head_importance(model, (x, y), loss=lambda output, inputs: output)
    with torch.no_grad():
        whole = model(x, y)
        for head in found.heads:
            with headwise.ablated(model, [(0, head.head)]):
                # the loss is linear in what heads put out: a gate's derivative is the difference that a head makes
                assert head.importance == pytest.approx(abs(float(whole - model(x, y))), rel=1e-9)


def test_a_layer_of_which_no_head_matters_has_importances_of_0():
    model = Twice(num_layers=2).eval()
    with torch.no_grad():
        model.layers[0].out_proj.weight.zero_()
    x, y = torch.randn(2, 1, 5, 12, generator=torch.Generator().manual_seed(2))
    found = headwise.head_importance(model, (x, y), loss=lambda output, inputs: output)
    assert [head.normalized for head in found.heads if head.layer == 0] == [0.0] * 3
    assert sum(head.normalized**2 for head in found.heads if head.layer == 1) == pytest.approx(1.0)


@pytest.mark.parametrize(("first_id", "expected"), [(0, 3), (None, 4)])
def test_two_copies_have_room_beside_the_first_token(first_id, expected):
    vocabulary = read_vocabulary(nn.Identity(), 19, first_id)
    source, num_random = random_repeats(vocabulary, num_texts=2, num_random=None, max_length=8, seed=0, batch_size=2)
    assert num_random == expected
    assert source.longest <= 8


def test_a_map_that_is_not_a_number_has_no_stable_rank_and_its_neighbour_has():
    weights = torch.eye(5).repeat(1, 2, 1, 1)
    weights[0, 1, 2, 3] = torch.nan
    layer = GivenWeights(weights=weights, visible=torch.ones(1, 1, 5, 5, dtype=torch.bool))
    real = torch.ones(1, 5, dtype=torch.bool)
    ranks = stable_ranks(layer, TokenKinds(real, torch.zeros_like(real)))[0]
    assert ranks[0] == pytest.approx(5.0)
    assert ranks[1].isnan()
