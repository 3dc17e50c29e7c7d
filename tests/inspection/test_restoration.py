"""Whatever looks at a model leaves it as it was, wherever the model fails."""

import pytest
import torch
import transformers
from torch import nn

import headwise
from headwise.inspection.capture.quiet_passes import run
from headwise.inspection.inspect import inspect_inputs

VOCAB, IDS = 19, torch.randint(3, 19, (2, 7), generator=torch.Generator().manual_seed(1))
MOST_CALLS = 60


def hugging_face(family):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    if family == "Bert":
        sizes |= {"intermediate_size": 7, "max_position_embeddings": 13}
    config = getattr(transformers, f"{family}Config")(**sizes)
    return getattr(transformers, f"{family}Model")(config)


class TorchStack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCAB, 12)
        layer = nn.TransformerEncoderLayer(12, 3, dim_feedforward=7, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids):
        return (self.encoder(self.table(input_ids)),)


class OwnStack(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCAB, 12)
        self.layers = nn.ModuleList(headwise.MultiHeadAttention(12, 3) for _ in range(2))

    def forward(self, input_ids):
        x = self.table(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return (x,)


# BLOOM's attention bypasses transformers' interface: it is read in eager mode
MODELS = {
    "sdpa": lambda: hugging_face("Bert"),
    "eager": lambda: hugging_face("Bloom"),
    "torch": TorchStack,
    "own": OwnStack,
}


def loss(output, inputs):
    return output[0].square().mean()


def ablate(model, inputs, mode, **settings):
    with headwise.ablated(model, [(0, 1), (1, 2)], mode, **settings):
        run(model, inputs)


def monitor(model, inputs):
    watcher = headwise.AttentionMonitor(model, every=1)
    with watcher.step():
        run(model, inputs)
    assert watcher.error is None or "attention that can be heard" in str(watcher.error)  # BLOOM's cannot


DOORS = {
    "inspect": inspect_inputs,
    "read_weights": lambda model, inputs: headwise.read_weights(model, inputs, layer=1, head=2),
    "open_reader": headwise.open_reader,
    "open_stacks": headwise.open_stacks,
    "attention_rollout": lambda model, inputs: headwise.attention_rollout(model, inputs, heads="mean"),
    "attention_flow": lambda model, inputs: headwise.attention_flow(model, inputs, heads="max", queries=[1]),
    "head_importance": lambda model, inputs: headwise.head_importance(model, inputs, loss=loss),
    "ablation_losses": lambda model, inputs: headwise.ablation_losses(model, inputs, loss=loss, heads=[(0, 1)]),
    "pruning_curve": lambda model, inputs: headwise.pruning_curve(model, inputs, [(1, 2)], loss=loss, mode="mean"),
    "ablated to 0": lambda model, inputs: ablate(model, inputs, "zero"),
    "ablated to another text": lambda model, inputs: ablate(model, inputs, "resample", reference=inputs),
    "probe_roles": lambda model, inputs: headwise.probe_roles(model, VOCAB, num_repeats=1, num_random=3),
    "AttentionMonitor": monitor,
}


class MidwayError(Exception):
    """What a model raises in the middle of a pass."""


def fail_at(model, call):
    """Let the last linear map that a pass comes to raise at a call, counted from 1, of all there are in the model."""
    left = [call]
    last = [part for part in model.modules() if type(part) in (nn.Linear, nn.LayerNorm)]

    def count(*_):
        left[0] -= 1
        if left[0] == 0:
            raise MidwayError

    return [part.register_forward_pre_hook(count) for part in last]


def state_of(model):
    """Return all that looking at a model may not change."""
    interface = transformers.AttentionInterface
    masks = transformers.masking_utils.AttentionMaskInterface
    parts = list(model.modules())
    hook_tables = [name for name in vars(parts[0]) if name.endswith("_hooks")]
    return {
        "attention": [getattr(getattr(part, "config", None), "_attn_implementation", None) for part in parts],
        "functions": (sorted(interface().keys()), sorted(masks().keys())),
        "training": [part.training for part in parts],
        "hooks": [{name: list(vars(part)[name]) for name in hook_tables} for part in parts],
        "attributes": [sorted(vars(part)) for part in parts],
        "children": [[id(child) for child in part.children()] for part in parts],
        "parameters": [(name, id(each), each.requires_grad, each._version) for name, each in model.named_parameters()],
        "gradients": [each.grad is None for each in model.parameters()],
        "random": torch.get_rng_state().tolist(),
        "modes": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled(), torch.is_autocast_enabled("cpu")),
    }


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("door", DOORS)
def test_a_model_that_fails_midway_is_restored(door, kind):
    model = MODELS[kind]()
    inputs = {"input_ids": IDS} if kind in ("sdpa", "eager") else (IDS,)
    # a model as it is found: partly in training, partly frozen
    model.train(door == "AttentionMonitor")
    next(model.children()).train()
    next(model.parameters()).requires_grad_(False)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # a pass in training would draw random numbers, of its own right
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    num_failures = 0
    for call in range(1, MOST_CALLS, 4):
        handles = fail_at(model, call)
        before = state_of(model)
        try:
            DOORS[door](model, inputs)
            failed = False
        except Exception as error:
            assert MidwayError in map(type, (error, error.__cause__, error.__context__)), error
            failed = True
        after = state_of(model)
        for name, value in before.items():
            assert after[name] == value, (name, call)
        for handle in handles:
            handle.remove()
        num_failures += failed
        if not failed:
            break
    assert num_failures >= 2  # in the middle of the first pass, and of later ones


@pytest.mark.parametrize("kind", MODELS)
def test_outputs_are_the_same_to_the_bit_after_all_that_looks_at_a_model(kind):
    model = MODELS[kind]().eval()
    inputs = {"input_ids": IDS} if kind in ("sdpa", "eager") else (IDS,)

    expected = run(model, inputs)[0]
    for door in DOORS.values():
        door(model, inputs)
    assert torch.equal(run(model, inputs)[0], expected)
