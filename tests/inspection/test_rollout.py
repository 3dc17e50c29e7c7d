"""Rollout and flow against cases worked out by hand, and against plain products of full maps."""

import pytest
import torch
from torch import nn

from headwise.cost.running.peaks import record_peaks
from headwise.errors import ConfigError, ModelError
from headwise.inspection import rollout
from headwise.inspection.capture.readers import OneStack
from headwise.inspection.capture.stacks import Stack
from headwise.inspection.rollout import attention_flow, attention_rollout
from headwise.integrations import layer_weights
from headwise.integrations.layer_weights import GivenWeights

transformers = pytest.importorskip("transformers")

# Three tokens, two layers, two heads; the means of the heads are [1 0 0 | 1/2 1/2 0 | 0 1/2 1/2] and [1 0 0 | 1 0 0 |
# 1/2 0 1/2], so with the residual A_1 = [1 0 0 | 1/4 3/4 0 | 0 1/4 3/4] and A_2 = [1 0 0 | 1/2 1/2 0 | 1/4 0 3/4].
FIRST = [
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
]
SECOND = [
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
]


class Given:
    """Reads weights that are given."""

    notes = ()
    stacks = (Stack(name="self", is_cross=False, num_layers=2),)

    def __init__(self, *layers):
        self.layers = layers

    def read(self, inputs, observer):
        for number, layer in enumerate(self.layers):
            weights = torch.tensor(layer)[None]
            observer("self", number, GivenWeights(weights=weights, visible=weights > 0))


@pytest.fixture
def by_hand(monkeypatch):
    monkeypatch.setattr(
        rollout, "open_reader", lambda model, inputs, stack: OneStack(Given(FIRST, SECOND), Given.stacks[0], ())
    )
    return nn.Identity(), ()


def test_rollout_is_the_product_of_the_layers_with_their_residuals(by_hand):
    # A_2 A_1: row 1 = 1/2 [1 0 0] + 1/2 [1/4 3/4 0], row 2 = 1/4 [1 0 0] + 3/4 [0 1/4 3/4]
    expected = [[1, 0, 0], [5 / 8, 3 / 8, 0], [1 / 4, 3 / 16, 9 / 16]]
    assert attention_rollout(*by_hand, heads="mean").tolist() == [expected]


def test_rollout_by_the_largest_weight_of_any_head_divides_rows_by_their_sum(by_hand):
    # the maxima are [1 0 0 | 1 1 0 | 0 1 1] and [1 0 0 | 1 0 0 | 1 0 1]; plus I, by rows:
    # A_1 = [1 0 0 | 1/3 2/3 0 | 0 1/3 2/3], A_2 = [1 0 0 | 1/2 1/2 0 | 1/3 0 2/3]
    expected = [[1, 0, 0], [1 / 2 + 1 / 6, 1 / 3, 0], [1 / 3, 2 / 9, 4 / 9]]
    torch.testing.assert_close(attention_rollout(*by_hand, heads="max"), torch.tensor([expected]))


def test_rollout_by_the_smallest_weight_keeps_what_no_head_shares(by_hand):
    # the minima are [1 0 0 | 0 0 0 | 0 0 0] and [1 0 0 | 1 0 0 | 0 0 0]: A_1 = I, A_2 = [1 0 0 | 1/2 1/2 0 | 0 0 1]
    expected = [[1, 0, 0], [1 / 2, 1 / 2, 0], [0, 0, 1]]
    assert attention_rollout(*by_hand, heads="min").tolist() == [expected]


def test_flow_is_what_the_narrowest_edges_let_through(by_hand):
    # From token 2 after layer 2, edges of 1/4 to token 0 and 3/4 to token 2, then by A_1. To token 0: through token 0,
    # min(1/4, 1); through token 2 there is no edge to token 0. To token 1: through token 2, min(3/4, 1/4); to token 2:
    # min(3/4, 3/4). From token 1, edges of 1/2 to 0 and to 1: to token 0, min(1/2, 1) + min(1/2, 1/4); to token 1,
    # min(1/2, 3/4).
    expected = [[1, 0, 0], [3 / 4, 1 / 2, 0], [1 / 4, 1 / 4, 3 / 4]]
    assert attention_flow(*by_hand, heads="mean").tolist() == [expected]
    assert attention_flow(*by_hand, heads="mean", queries=[2, 1]).tolist() == [[expected[2], expected[1]]]


def build(attention="sdpa"):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=53,
        hidden_size=12,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=2,
        num_hidden_layers=3,
        intermediate_size=7,
        initializer_range=0.5,
        attn_implementation=attention,
    )
    return transformers.LlamaModel(config).eval()


def mixed(model, inputs, heads):
    with torch.no_grad():
        maps = torch.stack(model(**inputs, output_attentions=True).attentions)
    combined = maps.mean(dim=2) if heads == "mean" else getattr(maps, f"a{heads}")(dim=2)
    combined = 0.5 * combined + 0.5 * torch.eye(combined.shape[-1])
    return combined / combined.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
@pytest.mark.parametrize("block_elements", [2**22, 1])
def test_rollout_in_blocks_of_queries_is_the_product_of_full_maps(heads, block_elements, monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", block_elements)
    inputs = {"input_ids": torch.randint(53, (2, 7), generator=torch.Generator().manual_seed(0))}
    layers = mixed(build("eager"), inputs, heads)
    expected = layers[2] @ layers[1] @ layers[0]
    found = attention_rollout(build(), inputs, heads=heads)
    # weights in float32, 2^-24 each and some more from scores of size about 10, in three products
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 7))


def test_nothing_of_heads_times_layers_is_held(monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 6 * 31)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            if isinstance(output, torch.Tensor):
                seen.append(output.numel())
            return output

    with Watch():
        attention_rollout(build(), {"input_ids": torch.randint(53, (1, 31))}, heads="mean")
    assert max(seen) == 31 * 31  # the rollout itself, not 6 heads of it


def test_two_maps_are_held_whatever_the_number_of_layers(monkeypatch):
    monkeypatch.setattr(layer_weights, "BLOCK_ELEMENTS", 2**15)
    tokens = 1021
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=53,
        hidden_size=6,
        num_attention_heads=2,
        num_hidden_layers=3,
        intermediate_size=5,
        max_position_embeddings=tokens,
    )
    model = transformers.BertModel(config).eval()
    inputs = {"input_ids": torch.randint(53, (1, tokens))}
    with record_peaks(torch.device("cpu")) as peaks, peaks.moment("rollout"):
        attention_rollout(model, inputs, heads="mean")
    # the layers so far and this one; all else, blocks of 2**15 weights among it, is less than half a map
    assert 2 * 4 * tokens**2 < peaks.bytes_by_moment["rollout"] < 2.5 * 4 * tokens**2


def test_padding_reaches_no_real_token():
    ids = torch.randint(1, 53, (1, 7))
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=53, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=7
    )
    model = transformers.BertModel(config)
    found = attention_rollout(model, {"input_ids": ids, "attention_mask": mask}, heads="mean")
    assert not found[0, :5, 5:].any()
    alone = attention_rollout(model, {"input_ids": ids[:, :5]}, heads="mean")
    torch.testing.assert_close(found[:, :5, :5], alone)


def test_flow_is_at_least_the_rollouts_best_path_and_at_most_what_a_token_has():
    inputs = {"input_ids": torch.randint(53, (2, 5), generator=torch.Generator().manual_seed(0))}
    flow = attention_flow(build(), inputs, heads="mean")
    layers = mixed(build("eager"), inputs, "mean").double()
    # what leaves a token is 1; the widest path alone brings its narrowest edge
    widest = layers[0]
    for layer in layers[1:]:
        widest = torch.minimum(layer[:, :, :, None], widest[:, None]).amax(dim=2)
    assert flow.shape == (2, 5, 5)
    assert (flow <= 1 + 1e-5).all()
    assert (flow >= widest - 1e-5).all()
    assert not flow.triu(1).any()


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (
            lambda: attention_rollout(build(), {"input_ids": torch.ones(1, 3).long()}, heads="sum"),
            'heads must be "mean"',
        ),
        (lambda: attention_flow(build(), {"input_ids": torch.ones(1, 3).long()}, heads="sum"), 'heads must be "mean"'),
        (
            lambda: attention_flow(build(), {"input_ids": torch.ones(1, 65).long()}, heads="mean"),
            "inputs must hold at most 64 tokens for the flow, .*; got 65: attention_rollout takes any length$",
        ),
        *(
            (
                lambda queries=queries: attention_flow(
                    build(), {"input_ids": torch.ones(1, 3).long()}, heads="mean", queries=queries
                ),
                r"queries must be numbers of tokens, from 0 to 2; got \[",
            )
            for queries in ([3], [-1], [], [0.0])
        ),
    ],
)
def test_wrong_requests_are_refused_in_a_line(call, fault, without_type_checks):
    with pytest.raises(ConfigError, match=fault) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_stack_that_reads_another_text_is_refused():
    model = nn.Transformer(12, 2, 1, 1, 13, batch_first=True)
    inputs = (torch.randn(1, 5, 12), torch.randn(1, 7, 12))
    fault = r"queries and keys must be the same tokens .*; stack 'cross' is cross-attention, whose keys are of another "
    for texts in (inputs, (torch.randn(1, 7, 12), torch.randn(1, 7, 12))):  # as many of one as of the other, too
        for follow in (attention_rollout, attention_flow):
            with pytest.raises(ModelError, match=fault):
                follow(model, texts, heads="mean", stack="cross")
    assert attention_rollout(model, inputs, heads="mean", stack="decoder").shape == (1, 7, 7)
