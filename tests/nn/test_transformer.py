"""Whole models of our own modules: what they compute, how positions and masks reach them, and what they refuse."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.head import OutputHead
from headwise.config.model import ModelConfig
from headwise.cost.memory import predict_step
from headwise.cost.parameters import count_parameters
from headwise.cost.running.measure import measure_training_step
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal
from headwise.masks.tables import Documents
from headwise.nn.build import build
from headwise.nn.classifier import Classifier
from headwise.nn.generation import generate
from headwise.nn.language_model import LanguageModel
from headwise.nn.transformer import Transformer

VOCAB, WIDTH, HEADS, PLACES = 29, 12, 3, 17
EXACT = {"rtol": 0, "atol": 1e-12}  # float64 sums of some hundred terms of size about 1


def describe(*, causal=True, position=None, places=PLACES, head=None, num_layers=2, **settings):
    attention = AttentionConfig(
        embed_dim=WIDTH, num_heads=HEADS, position=position, **({"mask": Causal()} if causal else {})
    )
    block = BlockConfig(attention=attention, feed_forward=FeedForwardConfig(embed_dim=WIDTH, hidden_dim=19))
    settings = {"final_norm": True, "max_positions": PLACES} | settings
    return ModelConfig(
        name="own",
        model_type="headwise",
        kind="decoder" if causal else "encoder",
        embed_dim=WIDTH,
        vocab_size=VOCAB,
        position_table_size=places,
        blocks=(block,) * num_layers,
        head=head,
        **settings,
    )


LANGUAGE = OutputHead(kind="language_model", num_outputs=VOCAB)
CLASSES = OutputHead(kind="classifier", num_outputs=5, per_token=False, bias=True)


def make(config, **settings):
    torch.manual_seed(0)
    return build(config, **settings).double().eval()


def ids(batch=2, length=7):
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_a_model_is_tables_blocks_and_a_norm():
    body, tokens = make(describe()), ids()
    x = body.token_table.weight[tokens] + body.positions.table[:7]
    for block in body.blocks:
        x = block(x)
    torch.testing.assert_close(body(tokens), body.norm(x), **EXACT)
    without = make(describe(places=0, final_norm=False, position=Rotary(), num_layers=1))
    assert without.positions is None and without.norm is None
    torch.testing.assert_close(without(tokens), without.blocks[0](without.token_table(tokens)), **EXACT)


def test_the_head_decides_what_is_built():
    kinds = {None: Transformer, LANGUAGE: LanguageModel, CLASSES: Classifier}
    for head, kind in kinds.items():
        assert type(build(describe(head=head))) is kind


@torch.no_grad()
def test_sinusoidal_positions_are_added_by_their_scale_at_any_place_and_hold_nothing():
    model, tokens = make(describe(places=0, sinusoid_scale=0.3, head=LANGUAGE)), ids(length=5)
    rows = [
        [[math.sin, math.cos][i % 2](place * 10_000 ** (-(i - i % 2) / WIDTH)) for i in range(WIDTH)]
        for place in range(40, 45)
    ]
    x = model.body.token_table.weight[tokens] + 0.3 * torch.tensor(rows, dtype=torch.float64)
    for block in model.body.blocks:
        x = block(x)
    expected = model.project(model.body.norm(x))
    torch.testing.assert_close(model(tokens, positions=torch.arange(40, 45)), expected, **EXACT)
    assert count_parameters(model.config).total == sum(one.numel() for one in model.parameters())
    assert len(generate(model, tokens, max_new_tokens=23)[0]) == 23


SOME_POSITIONS = {
    "table": {},
    "rotary": {"places": 0, "position": Rotary()},
    "sinusoids": {"places": 0, "sinusoid_scale": 0.3},
}


@pytest.mark.parametrize("settings", SOME_POSITIONS.values(), ids=SOME_POSITIONS)
@torch.no_grad()
def test_left_padding_equals_each_text_alone(settings):
    model, tokens = make(describe(head=LANGUAGE, **settings)), ids()
    lengths = torch.tensor([7, 4])
    positions = (torch.arange(7) - (7 - lengths[:, None])).clamp(min=0)
    together = model(tokens, mask=KeyPadding(lengths, side="left", padded_len=7), positions=positions)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(together[row, 7 - length :], model(tokens[row : row + 1, 7 - length :])[0], **EXACT)


@torch.no_grad()
def test_packed_texts_equal_each_alone():
    model, tokens = make(describe(head=LANGUAGE)), ids(1)
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3])
    packed = model(tokens, mask=Documents(torch.tensor([3, 4])), positions=positions)
    torch.testing.assert_close(packed[:, :3], model(tokens[:, :3]), **EXACT)
    torch.testing.assert_close(packed[:, 3:], model(tokens[:, 3:]), **EXACT)


@torch.no_grad()
def test_a_later_token_changes_no_earlier_score():
    model, tokens = make(describe(head=LANGUAGE)), ids()
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB
    assert torch.equal(model(tokens)[:, :4], model(changed)[:, :4])


@torch.no_grad()
def test_scores_are_the_logarithms_of_the_probabilities_of_the_tokens_that_come():
    model, tokens = make(describe(head=LANGUAGE)), ids()
    scores, probs = model.score(tokens), model(tokens).softmax(-1)
    for row in range(2):
        for place in range(6):
            # score works in float32, which rounds numbers of size 4 by 2e-7
            assert float(scores[row, place]) == pytest.approx(
                float(probs[row, place, tokens[row, place + 1]].log()), abs=2e-6
            )
    assert float(model.loss(tokens)) == pytest.approx(-float(scores.mean()), abs=2e-6)
    labels = tokens.clone()
    labels[1] = -100
    assert float(model.loss(tokens, labels=labels)) == pytest.approx(-float(scores[0].mean()), abs=2e-6)


@torch.no_grad()
def test_a_tied_head_reads_the_token_table_and_a_cap_bounds_the_scores():
    model, tokens = make(describe(head=replace(LANGUAGE, tied=True, softcap=0.1))), ids()
    logits = functional.linear(model.body(tokens), model.body.token_table.weight)
    torch.testing.assert_close(model(tokens), 0.1 * torch.tanh(logits / 0.1), **EXACT)
    assert model.projection is None


@torch.no_grad()
def test_a_class_is_told_by_the_mean_of_the_real_tokens():
    model, tokens = make(describe(causal=False, head=CLASSES)), ids(3)
    lengths = torch.tensor([7, 4, 0])
    scores = model(tokens, lengths=lengths)
    torch.testing.assert_close(scores[:1], model(tokens[:1]), **EXACT)
    torch.testing.assert_close(scores[1:2], model(tokens[1:2, :4]), **EXACT)
    torch.testing.assert_close(scores[2], model.projection.bias, **EXACT)  # a text of nothing
    hidden = model.body(tokens[:1]).mean(1)
    torch.testing.assert_close(scores[:1], model.projection(hidden), **EXACT)
    each = make(describe(causal=False, head=replace(CLASSES, per_token=True)))
    assert each(tokens).shape == (3, 7, 5)


@pytest.mark.parametrize("lengths", [None, torch.tensor([2003, 1500])], ids=["whole", "padded"])
@torch.no_grad()
def test_a_mean_of_many_tokens_does_not_overflow_in_float16(lengths):
    model = make(describe(causal=False, head=CLASSES, places=0, final_norm=False)).float()
    model.body.token_table.weight.add_(40)  # 2003 states of about 40 have a sum above float16's largest number, 65504
    tokens = ids(length=2003)
    exact = model.double()(tokens, lengths=lengths)
    half = model.half()(tokens, lengths=lengths)
    assert half.dtype == torch.float16 and half.isfinite().all()
    # a state of 40 is rounded by 2^-6 a few times, and so is the score, a sum of 12 of them times at most 0.3
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=12 * 0.3 * 4 * 2**-6)


@torch.no_grad()
def test_what_stands_in_the_padding_does_not_reach_the_mean():
    model, tokens, lengths = make(describe(causal=False, head=CLASSES)), ids(), torch.tensor([7, 4])
    tokens[1, 4:] = VOCAB - 1
    tokens[:, :4] %= VOCAB - 1
    tokens[0] %= VOCAB - 1
    before = model(tokens, lengths=lengths)
    model.body.token_table.weight[VOCAB - 1] = float("nan")
    assert torch.equal(model(tokens, lengths=lengths), before)


NEARLY_ALL = 0.999999  # of the numbers are dropped


@torch.no_grad()
def test_dropout_acts_on_embeddings_and_before_the_classes_in_training_alone():
    tokens = ids()
    body = make(describe(embedding_dropout_p=NEARLY_ALL, num_layers=1))
    without = make(describe(num_layers=1))
    assert torch.equal(body(tokens), without(tokens))
    seen = []
    body.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    body.train()(tokens)
    assert not seen[0].any()
    model = make(describe(causal=False, head=replace(CLASSES, dropout_p=NEARLY_ALL)))
    assert torch.equal(model(tokens), make(describe(causal=False, head=CLASSES))(tokens))
    assert torch.equal(model.train()(tokens), model.projection.bias.expand(2, 5))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@torch.no_grad()
def test_the_last_norm_is_of_the_blocks_kind_and_epsilon(norm):
    config = describe(num_layers=1)
    body = make(replace(config, blocks=(replace(config.blocks[0], norm=norm, norm_eps=0.5),)))
    seen = []
    body.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    y = body(ids())
    centred = seen[0] - (seen[0].mean(-1, keepdim=True) if norm == "layernorm" else 0)
    torch.testing.assert_close(y, centred / (centred.square().mean(-1, keepdim=True) + 0.5).sqrt(), **EXACT)


@torch.no_grad()
def test_tables_and_the_projection_to_the_vocabulary_start_small_and_biases_at_zero():
    torch.manual_seed(0)
    config = describe(head=replace(LANGUAGE, bias=True))
    wide = {"embed_dim": 96, "vocab_size": 211}
    attention = replace(config.blocks[0].attention, embed_dim=96, head_dim=32, v_head_dim=32, key_dim=96, value_dim=96)
    block = replace(config.blocks[0], attention=attention, feed_forward=FeedForwardConfig(embed_dim=96, hidden_dim=19))
    model = build(replace(config, **wide, blocks=(block,), head=replace(LANGUAGE, bias=True, num_outputs=211)))
    for table in (model.body.token_table.weight, model.projection.weight):
        # of 20,256 numbers the deviation is known to 1 part in 200, and the mean to 0.02 / 142
        assert float(table.std()) == pytest.approx(0.02, rel=0.025)
        assert abs(float(table.mean())) < 5 * 0.02 / 142
    assert not model.projection.bias.any()


@torch.no_grad()
def test_loss_and_scores_are_computed_in_float32_or_better_whatever_the_models_dtype():
    model, tokens = make(describe(head=LANGUAGE)).bfloat16(), ids()
    logits = model(tokens)[:, :-1]
    assert logits.dtype == torch.bfloat16
    exact = logits.double().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    scores, loss = model.score(tokens), model.loss(tokens)
    assert scores.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=2e-6)  # float32 numbers of size 4; bfloat16: 0.008
    assert float(loss) == pytest.approx(-float(exact.mean()), abs=2e-6)


def test_a_text_beyond_the_table_is_refused_with_the_reason():
    model = make(describe())
    assert model(ids(length=PLACES)).shape == (2, PLACES, WIDTH)
    with pytest.raises(ConfigError, match=r"positions must be below max_positions = 17.*got 17"):
        model(ids(length=PLACES + 1))
    with pytest.raises(ConfigError, match=r"positions must be below max_positions = 17.*got 40"):
        model(ids(length=2), positions=torch.tensor([0, 40]))


def test_positions_that_nothing_reads_are_refused():
    with pytest.raises(ConfigError, match="positions are read by a table or by attentions"):
        make(describe(places=0))(ids(), positions=torch.arange(7))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_token_types": 2}, "num_token_types must be 0 for a model to be built here; got 2"),
        ({"embedding_norm": True}, "embedding_norm must be False"),
        ({"pooler": True}, "pooler must be False"),
    ],
)
def test_a_part_that_is_not_built_is_refused_by_name(changes, text):
    with pytest.raises(UnsupportedError, match=text):
        build(describe(**changes))


@pytest.mark.parametrize(
    ("kind", "head", "error", "text"),
    [
        (LanguageModel, None, ConfigError, "needs a head of kind 'language_model'; got None"),
        (LanguageModel, CLASSES, ConfigError, "needs a head of kind 'language_model'"),
        (LanguageModel, replace(LANGUAGE, transform=True), UnsupportedError, "the head must be one projection"),
        (Classifier, LANGUAGE, ConfigError, "needs a head of kind 'classifier'"),
        (Classifier, replace(CLASSES, softcap=2.0), UnsupportedError, "the head must be one projection"),
    ],
)
def test_a_head_of_another_kind_is_refused_by_name(kind, head, error, text):
    with pytest.raises(error, match=text):
        kind(describe(head=head))


@pytest.mark.parametrize("checkpoint", ["none", "selective"])
@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_a_built_model_keeps_what_its_config_foretells(checkpoint, impl):
    config = describe(head=LANGUAGE)
    attention = "eager" if impl == "reference" else "sdpa"
    workload = Workload(
        batch=2, seq=7, device="cpu", optimizer="sgd", attention=attention, checkpoint=checkpoint, dropout=False
    )
    model = build(config, checkpoint=checkpoint, impl=impl)
    measured = measure_training_step(model, (ids(),), workload=replace(workload, checkpoint="none"))
    assert measured == measure_training_step(build(config, impl=impl), (ids(),), workload=workload)
    predicted = predict_step(config, workload)
    assert (predicted.parameter_bytes, predicted.saved_bytes) == (measured.parameter_bytes, measured.saved_bytes)


def test_a_model_learns_a_text_by_heart():
    torch.manual_seed(0)
    model, tokens = build(describe(head=LANGUAGE)), ids(1, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    first = float(model.loss(tokens).detach())
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(tokens).backward()
        optimizer.step()
    # chance is ln 29 = 3.4 nats a token; one text of eleven steps fits in two thousand weights
    assert first > 3 and float(model.loss(tokens).detach()) < 0.1
