"""What cannot be answered is refused in one line that says what must hold and what came."""

import json
import subprocess
import sys

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


def print_refusals():
    """Print, by door and case, what is said of arguments of other types than annotated."""
    found = {}
    for case, (model, inputs) in OF_OTHER_TYPES.items():
        for name, door in (DOORS | (WITHOUT_INPUTS if model is not bert else {})).items():
            found[f"{name}, {case}"] = refuse(door, bert() if model is bert else model, inputs)
    print(json.dumps(found))


def test_arguments_of_other_types_are_refused_where_no_annotation_is_checked():
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('requests_made', sys.argv[1]); "
        "made = importlib.util.module_from_spec(spec); spec.loader.exec_module(made); made.print_refusals()"
    )
    done = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == 3 * 12 + 2 * 9
    for place, text in said.items():
        if place.endswith(("a text", "a tensor")):
            assert "as a mapping" in text or "keyword arguments" in text, place
        else:
            got = {"a name": "str", "nothing": "NoneType", "a class": "the class BertModel"}[place.split(", ")[1]]
            assert text.startswith(f"model must be a module in hand (torch.nn.Module); got {got}:"), place


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
