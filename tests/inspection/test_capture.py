import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from torch import nn

from headwise.errors import ModelError
from headwise.inspection.capture.listening import listen
from headwise.inspection.capture.readers import open_reader, open_stacks
from headwise.inspection.capture.stacks import StackNames
from headwise.inspection.inspect import inspect_inputs
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.nn.multihead import MultiHeadAttention

VOCAB, WIDTH, HEADS, TOKENS = 53, 12, 3, 7
IDS = torch.randint(1, VOCAB, (2, TOKENS), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0]])


def read(model, inputs):
    weights, visible, real = [], [], []

    def observer(number, layer):
        assert number == len(weights)
        blocks = list(layer.blocks())
        weights.append(torch.cat([block.weights for block in blocks], dim=2))
        visible.append(torch.cat([block.visible for block in blocks], dim=2))
        real.append(layer.real_tokens)

    reader = open_reader(model, inputs)
    reader.read(inputs, observer)
    return weights, visible, real, reader.notes


def tiny_bert(cls=transformers.BertModel, **settings):
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=7,
        initializer_range=0.5,
        **settings,
    )
    return cls(config)


def tiny_falcon(**settings):
    config = transformers.FalconConfig(
        vocab_size=VOCAB, hidden_size=8, num_attention_heads=2, num_hidden_layers=2, initializer_range=0.5
    )
    return transformers.FalconModel._from_config(config, **settings)


def tiny_bloom():
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=VOCAB, hidden_size=8, n_head=2, n_layer=2, initializer_range=0.5)
    )


def test_a_hugging_face_model_is_read_on_its_fast_path_without_its_output_head():
    model = tiny_bert(transformers.BertForMaskedLM)
    model.cls.forward = None  # calling it would fail
    weights, visible, _, notes = read(model, {"input_ids": IDS, "attention_mask": PADDED})
    assert [layer.shape for layer in weights] == [(2, HEADS, TOKENS, TOKENS)] * 2
    assert torch.equal(visible[0][1, 0], PADDED[1].bool().expand(TOKENS, TOKENS))
    assert notes == ()


def test_layers_that_share_their_weights_are_told_apart():
    config = transformers.AlbertConfig(
        vocab_size=VOCAB,
        embedding_size=5,
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=3,
        intermediate_size=7,
        initializer_range=0.5,
    )
    weights, _, _, _ = read(transformers.AlbertModel(config), {"input_ids": IDS})
    assert len(weights) == 3
    assert not torch.allclose(weights[0], weights[1])


def test_falcon_is_read_in_eager_mode_with_the_masks_of_eager_mode_and_a_note():
    # under sdpa, output_attentions=True of transformers 5.24 adds a mask of True and False to Falcon's scores
    torch.manual_seed(0)
    model = tiny_falcon(attn_implementation="sdpa")
    oracle = tiny_falcon(attn_implementation="eager").eval()
    oracle.load_state_dict(model.state_dict())
    inputs = {"input_ids": IDS, "attention_mask": PADDED}
    weights, visible, _, notes = read(model, inputs)
    with torch.no_grad():
        expected = oracle(**inputs, output_attentions=True).attentions
    for layer in range(2):
        torch.testing.assert_close(weights[layer], expected[layer])
        assert not visible[layer].triu(1).any()
    assert "FalconModel was read in eager mode" in notes[0]
    assert model.config._attn_implementation == "sdpa"


def test_bloom_whose_attention_is_its_own_is_read_in_eager_mode():
    torch.manual_seed(0)
    model = tiny_bloom().eval()
    weights, _, _, notes = read(model, {"input_ids": IDS, "attention_mask": PADDED})
    with torch.no_grad():
        expected = model(input_ids=IDS, attention_mask=PADDED, output_attentions=True).attentions
    torch.testing.assert_close(torch.stack(weights), torch.stack(expected))
    assert "2 of its 2 layers bypass transformers' AttentionInterface" in notes[0]


def test_weights_that_are_nan_are_counted_as_such_in_eager_mode_too():
    torch.manual_seed(0)
    model = tiny_bloom().eval()
    with torch.no_grad():
        model.transformer.h[1].self_attention.query_key_value.weight[0, 0] = torch.nan
    heads = [head for head in inspect_inputs(model, {"input_ids": IDS}).heads if head.layer == 1]
    assert heads[0].num_nan_queries == IDS.numel() and math.isnan(heads[0].entropy)
    assert all(head.num_empty_queries == 0 for head in heads)


LAYER = torch.ones(2, 2, 7, 7) / 7


@pytest.mark.parametrize(
    "attentions", [None, (), (None, None), (LAYER,), (LAYER, LAYER, None), (torch.ones(7, 7), torch.ones(7, 7))]
)
def test_a_model_that_hides_its_attention_is_refused_by_name_and_never_shown_empty(attentions, monkeypatch):
    model = tiny_bloom().transformer

    def forward(*args, **keywords):
        return transformers.modeling_outputs.BaseModelOutput(
            last_hidden_state=torch.zeros(2, 7, 8), attentions=attentions
        )

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ModelError, match="the attention of BloomModel cannot be read"):
        read(model, {"input_ids": IDS})


def tiny_t5():
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=VOCAB, d_model=8, d_kv=4, d_ff=7, num_layers=2, num_heads=2)
    return transformers.T5Model(config).eval()


def test_an_encoder_with_decoder_wants_inputs_of_both_and_its_encoder_is_read_alone():
    model = tiny_t5()
    with pytest.raises(
        ModelError, match=r"T5Model is an encoder and a decoder: .* model.get_encoder\(\); got input_ids"
    ):
        read(model, {"input_ids": IDS})
    inputs = {"input_ids": IDS, "attention_mask": PADDED}
    weights, _, _, _ = read(model.get_encoder(), inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model.get_encoder()(**inputs, output_attentions=True).attentions
    torch.testing.assert_close(torch.stack(weights), torch.stack(expected))


def test_both_stacks_and_cross_attention_are_shown_each_under_its_own_name():
    model = tiny_t5()
    inputs = {"input_ids": IDS, "attention_mask": PADDED, "decoder_input_ids": IDS[:, :5]}
    reader = open_stacks(model, inputs)
    assert [(stack.name, stack.is_cross, stack.num_layers) for stack in reader.stacks] == [
        ("encoder", False, 2),
        ("decoder", False, 2),
        ("cross", True, 2),
    ]
    shown = read_stacks(reader, inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    for stack, expected in (
        ("encoder", output.encoder_attentions),
        ("decoder", output.decoder_attentions),
        ("cross", output.cross_attentions),
    ):
        torch.testing.assert_close(shown[stack], list(expected))
    assert shown["cross"][0].shape == (2, 2, 5, TOKENS)


def read_stacks(reader, inputs):
    shown = {stack.name: [] for stack in reader.stacks}

    def observer(stack, number, layer):
        assert number == len(shown[stack])
        shown[stack].append(torch.cat([block.weights for block in layer.blocks()], dim=2))

    reader.read(inputs, observer)
    return shown


def test_one_of_several_stacks_is_read_by_its_name_and_none_without():
    model = tiny_t5()
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    known = r"'encoder' \(2 layers\), 'decoder' \(2 layers\), 'cross' \(2 layers\)"
    with pytest.raises(ModelError, match=f"one stack of attention layers at a time; T5Model has {known}: give stack"):
        open_reader(model, inputs)
    with pytest.raises(ModelError, match=f"stack must be one of T5Model's: {known}; got 'self'"):
        open_reader(model, inputs, stack="self")
    shapes = []
    reader = open_reader(model, inputs, stack="cross")
    reader.read(inputs, lambda number, layer: shapes.append((number, layer.shape)))
    assert shapes == [(0, (2, 2, 5, TOKENS)), (1, (2, 2, 5, TOKENS))]
    assert reader.notes == ()


def test_cross_attention_of_a_decoder_is_left_out_and_a_note_says_so():
    model = tiny_bert(is_decoder=True, add_cross_attention=True)
    inputs = {"input_ids": IDS, "encoder_hidden_states": torch.randn(2, TOKENS, WIDTH)}  # as long as the text itself
    weights, visible, _, notes = read(model, inputs)
    assert len(weights) == 2
    assert not visible[0].triu(1).any()
    assert notes == ("Cross-attention is left out: 2 layers that read the keys of another text.",)


def test_every_part_of_a_model_has_its_training_flag_again():
    for model, inputs in (
        (tiny_bert(), {"input_ids": IDS}),
        (tiny_bloom(), {"input_ids": IDS}),
        (Stack(), (hidden(),)),
    ):
        model.train()
        first = next(model.children())
        first.eval()
        flags = [part.training for part in model.modules()]
        read(model, inputs)
        assert [part.training for part in model.modules()] == flags
        assert True in flags
        assert False in flags


@pytest.mark.parametrize("kind", ["interface", "eager", "ours", "torch"])
def test_a_model_in_training_is_read_in_eval_mode(kind):
    make, inputs = {
        "interface": (lambda: tiny_bert(hidden_dropout_prob=0.5), {"input_ids": IDS}),
        "eager": (tiny_bloom_with_dropout, {"input_ids": IDS}),
        "ours": (Dropping, (hidden(),)),
        "torch": (lambda: nn.TransformerEncoder(torch_layer(), 2, enable_nested_tensor=False), (hidden(),)),
    }[kind]
    model = make()
    in_eval, _, _, _ = read(model.eval(), inputs)
    in_training, _, _, _ = read(model.train(), inputs)
    torch.testing.assert_close(in_training, in_eval, rtol=0, atol=0)


def tiny_bloom_with_dropout():
    config = transformers.BloomConfig(
        vocab_size=VOCAB, hidden_size=8, n_head=2, n_layer=2, initializer_range=0.5, hidden_dropout=0.5
    )
    return transformers.BloomForCausalLM(config)


def torch_layer():
    return nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=5, dropout=0.5, batch_first=True)


class Dropping(nn.Module):
    """Dropout before one of our layers."""

    def __init__(self):
        super().__init__()
        self.dropout, self.attention = nn.Dropout(0.5), MultiHeadAttention(WIDTH, HEADS)

    def forward(self, x):
        return self.attention(self.dropout(x))


def test_no_gradient_is_recorded():
    weights, _, _, _ = read(Stack(), (hidden().requires_grad_(),))
    assert not weights[0].requires_grad


class Stack(nn.Module):
    """Two of our layers, the second one causal and grouped."""

    def __init__(self, impl="auto"):
        super().__init__()
        torch.manual_seed(0)
        self.first = MultiHeadAttention(WIDTH, 6, impl=impl)
        self.second = MultiHeadAttention(WIDTH, 6, num_kv_heads=2, mask=Causal(), dropout_p=0.5, impl=impl)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.7)

    def forward(self, x, mask=None):
        x = self.first(x, mask=mask)
        return self.second(x, mask=mask)


def hidden():
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3))


def as_torch_layer(layer):
    """The same layer as nn.MultiheadAttention, key heads repeated for the queries that share them."""
    twin = nn.MultiheadAttention(WIDTH, 6, batch_first=True).eval()
    group = layer.config.queries_per_kv

    def repeat(tensor):
        heads = tensor.unflatten(0, (-1, WIDTH // 6))
        return heads.repeat_interleave(group, dim=0).flatten(0, 1)

    with torch.no_grad():
        for kind in ("weight", "bias"):
            parts = [getattr(getattr(layer, name), kind) for name in ("q_proj", "k_proj", "v_proj")]
            getattr(twin, f"in_proj_{kind}").copy_(torch.cat([parts[0], repeat(parts[1]), repeat(parts[2])]))
            getattr(twin.out_proj, kind).copy_(getattr(layer.out_proj, kind))
    return twin


@pytest.mark.parametrize("impl", ["auto", "sdpa", "reference"])
def test_our_own_layers_show_what_torchs_own_would_with_the_same_parameters(impl):
    model = Stack(impl=impl)
    padding = KeyPadding(torch.tensor([7, 4]))
    weights, visible, real, notes = read(model, {"x": hidden(), "mask": padding})
    hide = ~PADDED.bool()
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    x = hidden()
    with torch.no_grad():
        x, first = as_torch_layer(model.first)(x, x, x, key_padding_mask=hide, average_attn_weights=False)
        _, second = as_torch_layer(model.second)(
            x, x, x, key_padding_mask=hide, attn_mask=causal, average_attn_weights=False
        )
    torch.testing.assert_close(weights[0], first, rtol=0, atol=1e-5)
    torch.testing.assert_close(weights[1], second, rtol=0, atol=1e-5)
    assert not visible[1].triu(1).any()
    assert all(torch.equal(known, PADDED.bool()) for known in real)
    assert notes == ()
    assert model.first.impl == impl
    assert not model.first._forward_pre_hooks


def test_our_own_cross_attention_is_not_shown_and_a_note_says_so():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.other = MultiHeadAttention(WIDTH, 3), MultiHeadAttention(WIDTH, 3)

        def forward(self, x, memory):
            return self.other(self.own(x), memory)

    model = Cross()
    memory = torch.randn(2, 5, WIDTH)
    weights, _, _, notes = read(model, (hidden(), memory))
    assert len(weights) == 1
    assert notes == ("Cross-attention is left out: 1 layer that reads the keys of another text.",)
    with pytest.raises(ModelError, match="in one forward pass of MultiHeadAttention none did"):
        read(model.other, (hidden(), memory))


def test_a_module_with_torchs_layers_is_read():
    block = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=5, batch_first=True)
    weights, _, _, _ = read(block, (hidden(),))
    with torch.no_grad():
        _, expected = block.eval().self_attn(hidden(), hidden(), hidden(), average_attn_weights=False)
    torch.testing.assert_close(weights[0], expected, rtol=0, atol=1e-6)


def test_torchs_cross_attention_is_not_shown_and_a_note_says_so():
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(WIDTH, HEADS, dim_feedforward=5, batch_first=True), num_layers=2
    )
    weights, _, _, notes = read(decoder, (hidden(), torch.randn(2, 5, WIDTH)))
    assert len(weights) == 2
    assert notes == ("Cross-attention is left out: 2 layers that read the keys of another text.",)


def test_other_modules_are_refused_with_what_is_supported():
    with pytest.raises(
        ModelError, match=r"nn\.MultiheadAttention or headwise's MultiHeadAttention; Linear is and runs none"
    ):
        open_reader(nn.Linear(WIDTH, 3), (hidden(),))
    with pytest.raises(ModelError, match="give inputs as a dict"):
        open_reader(tiny_bert(), (IDS,))


def test_a_pass_that_skips_a_layer_is_refused():
    model = tiny_bert()
    reader = open_reader(model, {"input_ids": IDS})
    model.encoder.layer = model.encoder.layer[:1]
    with pytest.raises(ModelError, match="must call its 2 attention layers once; this one called 1"):
        reader.read({"input_ids": IDS}, lambda number, layer: None)


def test_a_pass_that_fails_midway_leaves_the_model_as_it_was():
    for model, inputs in (
        (tiny_bert(attention_probs_dropout_prob=0.5), {"input_ids": IDS}),
        (tiny_bloom(), {"input_ids": IDS}),
        (tiny_t5(), {"input_ids": IDS, "decoder_input_ids": IDS}),
        (Stack(), (hidden(),)),
        (nn.TransformerEncoder(torch_layer(), 2, enable_nested_tensor=False), (hidden(),)),
    ):
        model.train()
        implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
        hooks = [(dict(part._forward_hooks), dict(part._forward_pre_hooks)) for part in model.modules()]
        reader = open_stacks(model, inputs)

        def fail(stack, number, weights):
            if number == 1:
                raise RuntimeError("observer")

        with pytest.raises(RuntimeError, match="observer"):
            reader.read(inputs, fail)
        assert all(part.training for part in model.modules())
        assert torch.is_grad_enabled()
        assert [(part._forward_hooks, part._forward_pre_hooks) for part in model.modules()] == hooks
        assert getattr(getattr(model, "config", None), "_attn_implementation", None) == implementation
        assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_listening_changes_no_output_by_a_bit(implementation):
    model = tiny_bert()
    model.set_attn_implementation(implementation)
    model.eval()
    inputs = {"input_ids": IDS, "attention_mask": PADDED}
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        with listen(model, lambda call: [None for _ in call.weights.blocks()]):
            output = model(**inputs).last_hidden_state
    assert torch.equal(output, expected)
    ours = Stack().eval()
    with torch.no_grad():
        expected = ours(hidden())
        with listen(ours, lambda call: [None for _ in call.weights.blocks()]):
            assert torch.equal(ours(hidden()), expected)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (2 * LAYER, "numbers below 0, or that sum to more than 1"),
        (LAYER - 1, "numbers below 0, or that sum to more than 1"),
        (torch.ones(2, 2, 8, 8) / 8, "8 weights for each of 8 queries, not one for each token"),  # padded inside
        (torch.ones(2, 2, 7, 5) / 5, "5 weights for each of 7 queries, not one for each token"),
    ],
)
def test_what_is_no_weights_is_refused(weights, text, monkeypatch):
    model = tiny_bloom().transformer

    def forward(*args, **keywords):
        return transformers.modeling_outputs.BaseModelOutput(
            last_hidden_state=torch.zeros(2, 7, 8), attentions=(LAYER, weights)
        )

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ModelError, match=f"returned {text}"):
        read(model, {"input_ids": IDS})


def test_a_model_that_fails_when_it_is_asked_for_weights_is_refused_in_one_line(monkeypatch):
    model = tiny_bloom().transformer

    def forward(*args, output_attentions=False, **keywords):
        if output_attentions:
            raise TypeError("'NoneType' object is not subscriptable\nmore")

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ModelError, match=r"returned no weights but TypeError: 'NoneType' object is not subscriptable$"):
        read(model, {"input_ids": IDS})


def test_a_stack_with_a_layer_that_is_not_heard_is_refused_and_not_numbered_wrong():
    class BareAttention(nn.Module):
        def forward(self, hidden_states, **keywords):
            return hidden_states, None

    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=7
    )
    model = transformers.LlamaModel(config)
    model.layers[0].self_attn = BareAttention()
    with pytest.raises(ModelError, match="1 of its 2 layers bypass"):
        read(model, {"input_ids": IDS})


def test_stacks_of_one_kind_are_told_apart_by_what_holds_them():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            make = lambda: nn.TransformerDecoderLayer(WIDTH, HEADS, dim_feedforward=5, batch_first=True)  # noqa: E731
            self.left, self.right = nn.TransformerDecoder(make(), 2), nn.TransformerDecoder(make(), 1)

        def forward(self, x, memory):
            return self.right(self.left(x, memory), memory)

    reader = open_stacks(Pair(), (hidden(), torch.randn(2, 5, WIDTH)))
    assert {(stack.name, stack.is_cross, stack.num_layers) for stack in reader.stacks} == {
        ("left", False, 2),
        ("left cross", True, 2),
        ("right", False, 1),
        ("right cross", True, 1),
    }


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_model_is_tried_on_the_first_real_tokens_of_the_first_text(side):
    model, lengths = tiny_bert(), []
    ids = torch.randint(1, VOCAB, (3, 101))
    mask = torch.ones_like(ids)
    mask[0, slice(0, 90) if side == "left" else slice(11, None)] = 0
    model.register_forward_pre_hook(
        lambda _, args, keywords: lengths.append(keywords["attention_mask"].tolist()), with_kwargs=True
    )
    open_reader(model, {"input_ids": ids, "attention_mask": mask})
    assert lengths == [[[1] * 11 if side == "left" else [1] * 11 + [0] * 21]]


def test_a_model_that_reads_short_texts_in_another_way_for_good_is_tried_on_a_whole_one():
    config = transformers.BigBirdConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=7,
        block_size=6,
        num_random_blocks=1,
        max_position_embeddings=64,
    )
    model = transformers.BigBirdModel(config)
    # the weights that it returns are not all of those that it attends with
    with pytest.raises(ModelError, match=r"in eager mode output_attentions=True returned .* sum to"):
        open_reader(model, {"input_ids": torch.randint(1, VOCAB, (2, 48))})
    assert model.attention_type == "block_sparse"


def test_places_that_no_part_of_their_path_tells_apart_have_their_whole_path_for_a_name():
    model = nn.Module()
    names = StackNames(model, by_path=True)
    places = [("a.b", False), ("b.a", False), ("", False), ("x.layers.*.self_attn", True), ("x.layers.*.other", True)]
    stacks = names.name_places([*places, places[0]])
    assert [(stack.name, stack.num_layers) for stack in stacks.values()] == [
        ("a.b", 2),
        ("b.a", 1),
        ("self", 1),
        ("self_attn cross", 1),
        ("other cross", 1),
    ]
    assert str(stacks[places[0]]) == "'a.b' (2 layers)"


@pytest.mark.parametrize("alibi", [True, False])
def test_a_model_that_computes_something_else_in_eager_mode_is_said_to(alibi):
    torch.manual_seed(0)
    config = transformers.FalconConfig(
        vocab_size=53, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, alibi=alibi, initializer_range=0.5
    )
    model = transformers.FalconModel(config).eval()
    inputs = {"input_ids": torch.randint(53, (1, 7))}
    notes = open_stacks(model, inputs).notes
    said = [note for note in notes if "computes something else than as it is set (sdpa)" in note]
    assert len(said) == alibi  # transformers' own: with ALiBi its two implementations differ
    assert any("was read in eager mode" in note for note in notes)


def test_threads_that_read_one_model_at_once_hear_their_own_passes():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=53, hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=7
    )
    model = transformers.BertModel(config).eval()
    inputs = {"input_ids": torch.randint(53, (1, 7))}

    def read_often(_):
        return [[stack.num_layers for stack in open_stacks(model, inputs).stacks] for _ in range(8)]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read_often, range(3))) == [[[2]] * 8] * 3
