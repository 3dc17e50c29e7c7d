"""What cannot be answered is refused in one line that says what must hold and what came."""

import pytest
import torch
import transformers
from torch import nn

import headwise
from headwise.errors import HeadwiseError, ModelError
from headwise.inspection.inspect import inspect_inputs

VOCAB, POSITIONS = 19, 13
IDS = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))
PADDED = {"input_ids": IDS, "attention_mask": torch.ones(2, 5)}


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=7,
        max_position_embeddings=POSITIONS,
    )
    return transformers.BertModel(config).eval()


def loss(output, inputs):
    return output[0].square().mean()


def enter(context):
    with context:
        pass


DOORS = {
    "inspect": inspect_inputs,
    "read_weights": lambda model, inputs: headwise.read_weights(model, inputs, layer=0, head=0),
    "open_reader": headwise.open_reader,
    "attention_rollout": lambda model, inputs: headwise.attention_rollout(model, inputs, heads="mean"),
    "attention_flow": lambda model, inputs: headwise.attention_flow(model, inputs, heads="mean"),
    "head_importance": lambda model, inputs: headwise.head_importance(model, inputs, loss=loss),
    "ablation_losses": lambda model, inputs: headwise.ablation_losses(model, inputs, loss=loss),
    "pruning_curve": lambda model, inputs: headwise.pruning_curve(model, inputs, [(0, 0)], loss=loss),
    "ablated": lambda model, inputs: enter(headwise.ablated(model, [(0, 0)], "mean", reference=inputs)),
}
WITHOUT_INPUTS = {
    "pruned": lambda model, _: headwise.pruned(model, [(0, 0)]),
    "probe_roles": lambda model, _: headwise.probe_roles(model, VOCAB),
    "AttentionMonitor": lambda model, _: headwise.AttentionMonitor(model),
}


def refuse(door, model, inputs):
    with pytest.raises(HeadwiseError) as caught:
        door(model, inputs)
    text = str(caught.value)
    assert "\n" not in text
    return text


OF_OTHER_TYPES = {
    "a name": ("bert-base-uncased", {"input_ids": IDS}),
    "nothing": (None, {"input_ids": IDS}),
    "a class": (transformers.BertModel, {"input_ids": IDS}),
    "a text": (bert, "a b c"),
    "a tensor": (bert, IDS),
}


@pytest.mark.parametrize("case", OF_OTHER_TYPES)
def test_arguments_of_other_types_are_refused_where_no_annotation_is_checked(case, without_type_checks):
    model, inputs = OF_OTHER_TYPES[case]
    for name, door in (DOORS | (WITHOUT_INPUTS if model is not bert else {})).items():
        text = refuse(door, bert() if model is bert else model, inputs)
        if model is bert:
            assert "as a mapping" in text or "keyword arguments" in text, name
        else:
            got = {"a name": "str", "nothing": "NoneType", "a class": "the class BertModel"}[case]
            assert text.startswith(f"model must be a module in hand (torch.nn.Module); got {got}:"), name


def ablate(**settings):
    inputs = {"input_ids": IDS}
    with headwise.ablated(bert(), [(0, 0)], **({"mode": "resample", "reference": inputs} | settings)):
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ablate(seed="a"), "seed must be a whole number; got 'a'"),
        (lambda: ablate(seed=1.5), "seed must be a whole number; got 1.5"),
        (lambda: ablate(seed=2**70), "seed must be between 0 and "),
        (
            lambda: headwise.ablation_losses(bert(), {"input_ids": IDS}, loss=3),
            "loss must be a function (output, inputs)",
        ),
        (
            lambda: headwise.head_importance(bert(), {"input_ids": IDS}, loss=3),
            "loss must be a function (output, inputs)",
        ),
        *(
            (
                lambda order=order: headwise.pruning_curve(bert(), {"input_ids": IDS}, order, loss=loss),
                "order must be a sequence of pairs (layer, head)",
            )
            for order in ({(0, 0)}, 3, None)
        ),
        *(
            (
                lambda queries=queries: headwise.attention_flow(
                    bert(), {"input_ids": IDS}, heads="mean", queries=queries
                ),
                "queries must be numbers of tokens, from 0 to 6; got ",
            )
            for queries in (2, [True], "01")
        ),
        *(
            (lambda make=make, setting=setting: make(**setting), words)
            for make in (
                lambda **setting: headwise.AttentionMonitor(bert(), **setting),
                headwise.AttentionTrainerCallback,
                headwise.AttentionLightningCallback,
            )
            for setting, words in [
                ({"every": 0}, "every must be between 1 and "),
                ({"num_rows": "3"}, "num_rows must be a whole number; got '3'"),
                ({"seed": "a"}, "seed must be a whole number; got 'a'"),
                ({"collapse_below": float("nan")}, "collapse_below must be a finite number; got nan"),
                ({"collapse_below": 2}, "collapse_below must be at least 0 and below 1; got 2"),
                ({"padding_id": "p"}, "padding_id must be a whole number; got 'p'"),
                ({"warn": 3}, "warn must be a function of a line; got 3"),
            ]
        ),
    ],
)
def test_a_setting_of_another_kind_or_size_is_refused_at_the_door(call, words, without_type_checks):
    with pytest.raises(HeadwiseError) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ({"step": "3"}, {}, "step must be a whole number; got '3'"),
        ({"step": -1}, {}, "step must be between 0 and "),
        ({"real_tokens": [1]}, {}, "real_tokens must be of type Tensor"),
        ({}, {"grad_scale": "x"}, "grad_scale must be a finite number; got 'x'"),
    ],
)
def test_a_mistake_in_a_step_stops_the_monitor_and_not_the_training(begin, end, words, without_type_checks):
    said = []
    model = bert()
    monitor = headwise.AttentionMonitor(model, warn=said.append)
    monitor.before_step(**begin)
    model(input_ids=IDS)[0].sum().backward()
    monitor.after_backward(**end)
    assert len(said) == 1 and words in said[0] and words in str(monitor.error)
    monitor.before_step(2)
    monitor.close()
    assert not any(part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, ("must hold input_ids for BertModel; got nothing", "keywords as a mapping")),
        ({"input_idz": IDS}, ("must hold input_ids for BertModel; got input_idz",)),
        ({"input_ids": IDS.tolist()}, ("a tensor of whole numbers", "got list: torch.tensor(...) makes one")),
        ({"input_ids": IDS.numpy()}, ("a tensor of whole numbers", "got ndarray")),
        ({"input_ids": IDS.float()}, ("a tensor of whole numbers", "got float32 of shape")),
        ({"input_ids": IDS[0]}, ("a tensor of whole numbers", "got int64 of shape")),
        ({"input_ids": IDS[:, :0]}, ("of one token or more",)),
        ({"input_ids": IDS[:0]}, ("of one token or more",)),
        ({"input_ids": IDS + 100}, ("tokens of BertModel, from 0 to 18; got 118",)),
        ({"input_ids": IDS - 100}, ("tokens of BertModel, from 0 to 18; got -",)),
        ({"input_ids": IDS.repeat(1, 2)}, ("at most 13 tokens a text", "got 14")),
        (PADDED, ("attention_mask must say of each token", "like input_ids; got")),
        ({"input_ids": IDS[:, :0], "attention_mask": IDS[:, :0]}, ("of one token or more",)),
        ({"input_ids": IDS[:0], "attention_mask": IDS[:0]}, ("of one token or more",)),
        ({"input_ids": IDS, "attention_mask": IDS.tolist()}, ("attention_mask must be a tensor; got list",)),
        ({"input_ids": IDS, 3: 4}, ("inputs must be named by what BertModel calls them; got 3",)),
    ],
    ids=[
        *(
            "nothing",
            "misspelt",
            "a list",
            "numpy",
            "float",
            "one dimension",
            "no token",
            "no text",
        ),
        *("above the vocabulary", "below 0", "too long", "another mask"),
        *("no token, with a mask", "no text, with a mask", "a mask that is a list", "a number as a name"),
    ],
)
def test_inputs_that_no_model_can_read_are_told_as_such(door, inputs, words):
    text = refuse(DOORS[door], bert(), inputs)
    assert any(each in text for each in words), text


def test_the_largest_id_and_the_longest_text_are_read():
    inputs = {"input_ids": torch.full((1, POSITIONS), VOCAB - 1)}
    for door in ("inspect", "attention_rollout"):
        DOORS[door](bert(), inputs)


class OfTheUsers(Exception):  # noqa: N818  a name of the user's choice
    pass


def test_an_error_that_inputs_do_not_explain_is_the_models_own():
    model = bert()

    def fail(*_):
        raise OfTheUsers

    model.encoder.register_forward_pre_hook(fail)
    for door in DOORS.values():
        with pytest.raises(OfTheUsers):
            door(model, {"input_ids": IDS})


def test_what_a_model_reads_against_expectation_is_not_refused():
    class Lenient(transformers.BertModel):
        def forward(self, input_ids=None, **keywords):
            return super().forward(input_ids=input_ids % VOCAB, **keywords)

    torch.manual_seed(0)
    model = Lenient(bert().config).eval()
    got = headwise.read_weights(model, {"input_ids": IDS + VOCAB}, layer=0, head=0)
    assert torch.equal(got, headwise.read_weights(model, {"input_ids": IDS}, layer=0, head=0))


@pytest.mark.parametrize("door", ["attention_flow", "head_importance", "ablation_losses", "pruning_curve"])
def test_weights_that_are_not_numbers_are_no_answer(door):
    model = bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    text = refuse(DOORS[door], model, {"input_ids": IDS})
    assert "NaN" in text or "nan" in text


@pytest.mark.parametrize("model", [nn.Linear(3, 3), nn.Sequential()], ids=["linear", "empty"])
@pytest.mark.parametrize("door", DOORS)
def test_a_module_without_heads_is_refused_by_its_class(door, model):
    inputs = (torch.ones(2, 3),)
    with pytest.raises(ModelError, match=type(model).__name__):
        DOORS[door](model, inputs)


PAIR = ((0, 1, 2),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: headwise.Detail(costly="no"), "costly must be True or False; got 'no'"),
        (lambda: headwise.Detail(across_layers=torch.ones(2)), "across_layers must be True or False"),
        (lambda: headwise.Detail(relations=3), "relations must be a tuple of Relation; got 3"),
        (lambda: headwise.Detail(relations=headwise.Relation(name="a", pairs=PAIR)), "relations must be a tuple"),
        (lambda: headwise.Detail(relations=("a",)), "each of relations must be of type Relation; got 'a'"),
        (lambda: headwise.Detail(null=3), "null must be of type Inspection; got 3"),
        (lambda: headwise.Relation(name="a", pairs=((1, 2),)), r"three whole numbers from 0 on; 'a' has \(1, 2\)"),
        (lambda: headwise.Relation(name="a", pairs=("xyz",)), "has 'xyz'"),
        (lambda: headwise.Relation(name="a", pairs=((0, 1.5, 2),)), "1.5"),
        (lambda: headwise.Relation(name="a", pairs=((0, -1, 2),)), "-1"),
        (lambda: headwise.Relation(name="a", pairs=((True, 0, 1),)), "True"),
    ],
)
def test_a_detail_or_relation_of_another_kind_is_refused_as_it_is_made(make, words, without_type_checks):
    with pytest.raises(HeadwiseError, match=words):
        make()


@pytest.mark.parametrize("place", [(torch.ones(2), 0), (0, [3]), (True, 0), (0, torch.ones(1))])
def test_a_head_that_is_no_number_is_refused(place, without_type_checks):
    layer, head = place
    with pytest.raises(ModelError, match=r"(layer|head) must be a number from 0 to [12]; got"):
        headwise.read_weights(bert(), {"input_ids": IDS}, layer=layer, head=head)
