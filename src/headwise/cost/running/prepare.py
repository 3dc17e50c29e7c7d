"""Make a module ready for a workload: what a step's precision, checkpointing, optimizer and loss mean in torch.

One preparation serves the step that is traced and the step that is measured, so that the two differ in nothing else.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from headwise.cost.running.adapters import add_adapters
from headwise.cost.running.freezing import freeze_layers
from headwise.cost.running.layer_lists import find_lists
from headwise.cost.workload import Workload
from headwise.errors import ModelError, UnsupportedError
from headwise.integrations.recomputed_attention import recompute_attention

LOSS_CHUNKS = 8  # of the chunked cross-entropy, as torchtune cuts it by default
IGNORED_LABEL = -100  # as torch's cross_entropy leaves a token out

Inputs = Mapping[str, Tensor] | tuple[Tensor, ...]
Loss = Callable[[Any], Tensor]

_IN_A_LAYER = re.compile(r"(^|\.)\d+\.")  # a parameter's name counts the layers that hold it
_MASKED_MODELS = re.compile(r"MaskedLM|PreTraining")  # classes that predict hidden tokens, not the next one

# What a model does to its scores after the output projection; the chunked loss would leave it out.
_SCORE_CHANGES = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


def prepare_module(module: nn.Module, workload: Workload) -> None:
    """Change a module in place so that it runs as the workload says, in train mode for "train", else in eval mode.

    Done to it: weights and persistent buffers take the workload's dtype; adapters are put in, and the rest frozen; or
    the embeddings and the first layers are frozen; dropout is switched off if the workload has none; a key/value cache
    is switched off, as transformers' Trainer does; a Hugging Face model takes the workload's attention implementation,
    under a checkpoint if that is selective; full checkpointing is switched on (transformers' own, else one checkpoint
    around every layer of the module's lists of equal layers); for the chunked loss the output projection hands on what
    it reads.

    Args:
        module: a copy that nobody else needs.
        workload: whose `precision`, `lora`, `frozen_layers`, `phase`, `dropout`, `attention`, `checkpoint` and `loss`
            are read.

    Raises:
        ConfigError: a target of `lora` is no projection of the module, or it has fewer layers than are to be frozen.
        UnsupportedError: the module or torch cannot do what the workload asks for.
    """
    _cast(module, getattr(torch, workload.weight_dtype))
    if workload.lora is not None:
        add_adapters(module, workload.lora)
    if workload.phase == "train":
        freeze_layers(module, workload.frozen_layers)
    if not workload.dropout:
        _switch_dropout_off(module)
    switch_cache_off(module)
    _set_attention(module, workload)
    if workload.loss == "chunked_cross_entropy":
        _defer_scores(module)
    module.train(workload.phase == "train")
    if workload.checkpoint == "full":
        _checkpoint_layers(module)


def switch_cache_off(module: nn.Module) -> None:
    """Switch a key/value cache off where the module's config has one, as transformers' Trainer does."""
    config: Any = getattr(module, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False


def prepare_inputs(inputs: Inputs, workload: Workload) -> Inputs:
    """Return the inputs with floating-point ones (images, embeddings) in the dtype of the weights."""
    dtype = getattr(torch, workload.weight_dtype)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if isinstance(tensor, Tensor) and tensor.is_floating_point() else tensor

    if isinstance(inputs, Mapping):
        return {name: cast(tensor) for name, tensor in inputs.items()}
    return tuple(cast(tensor) for tensor in inputs)


def call(module: nn.Module, inputs: Inputs, workload: Workload) -> object:
    """Call a module with its inputs, by name or in order; `labels` are the loss's where that is cross-entropy."""
    if not isinstance(inputs, Mapping):
        return module(*inputs)
    held_back = ("labels",) if workload.loss != "sum" else ()
    return module(**{name: value for name, value in inputs.items() if name not in held_back})


def make_optimizers(module: nn.Module, workload: Workload) -> tuple[torch.optim.Optimizer, ...]:
    """Make torch's optimizer of that name for the module's trained parameters, with torch's defaults.

    Momentum is SGD with 0.9. Muon is two: itself for the matrices of the layers, AdamW for all other parameters.

    Args:
        module: after `prepare_module`.
        workload: whose `optimizer` and `optimizer_step` are read.

    Raises:
        ModelError: nothing in the module is trained.
        UnsupportedError: torch has no such optimizer, or not in this form.
    """
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    parameters = [parameter for _, parameter in named]
    if not parameters:
        raise ModelError("a training step needs a parameter that requires a gradient; the module has none")
    name, step = workload.optimizer, workload.optimizer_step
    form: dict[str, Any] = {"foreach": step == "foreach", "fused": step == "fused"}
    optim = torch.optim
    match name:
        case "sgd" | "momentum":
            return (optim.SGD(parameters, momentum=0.9 if name == "momentum" else 0.0, **form),)
        case "adam":
            return (optim.Adam(parameters, **form),)
        case "adamw":
            return (optim.AdamW(parameters, **form),)
        case "adafactor" if step != "fused":
            return (optim.Adafactor(parameters, foreach=form["foreach"]),)
        case "muon":
            matrices = [one for name, one in named if one.dim() == 2 and _IN_A_LAYER.search(name)]
            chosen = {id(one) for one in matrices}
            rest = [one for one in parameters if id(one) not in chosen]
            muon = (optim.Muon(matrices),) if matrices else ()
            return (*muon, optim.AdamW(rest, **form)) if rest else muon
    raise UnsupportedError(
        f"the optimizer must be one of torch's: sgd, momentum, adam, adamw, adafactor (foreach or loop), muon; "
        f"got {name}, {step}"
    )


def make_loss(module: nn.Module, inputs: Inputs, workload: Workload) -> Loss:
    """Return the workload's loss, a function of the prepared module's output.

    "sum": of the first floating-point tensor, in float32. "cross_entropy": the mean over tokens as transformers
    computes it; of a causal model its scores in float32 against the next tokens, of a masked one its scores as they are
    against the labels. "chunked_cross_entropy": the same mean, of `LOSS_CHUNKS` pieces in float32, whose scores are
    computed again in backward.

    Args:
        module: after `prepare_module`.
        inputs: of the step, from `prepare_inputs`; `labels`, else its tokens (by name `input_ids`, else the first
            whole-number tensor) hold what to predict.
        workload: whose `loss` is read.

    Raises:
        UnsupportedError: there are no tokens to predict.
    """
    if workload.loss == "sum":
        return sum_of_first_tensor
    tokens = _tokens(inputs)
    is_masked = bool(_MASKED_MODELS.search(type(module).__name__))

    def labels() -> Tensor:
        return tokens.view(-1) if is_masked else _next_tokens(tokens)

    if workload.loss == "chunked_cross_entropy":
        head = next(part for part in module.modules() if isinstance(part, _DeferredScores)).projection
        return lambda output: _chunked_cross_entropy(head, first_tensor(output), labels())

    def cross_entropy(output: object) -> Tensor:
        scores = first_tensor(output) if is_masked else first_tensor(output).float()
        return functional.cross_entropy(scores.view(-1, scores.shape[-1]), labels())

    return cross_entropy


def autocast(workload: Workload) -> AbstractContextManager[Any]:
    """Return torch's autocast to the workload's dtype on its device, for forward and loss; without amp, nothing."""
    if workload.autocast_dtype is None:
        return nullcontext()
    return torch.autocast(workload.device, dtype=getattr(torch, workload.autocast_dtype))


def first_tensor(output: object) -> Tensor:
    """Return the first floating-point tensor of a module's output: the last hidden state, or the scores.

    Raises:
        ModelError: there is none.
    """
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf
    raise ModelError(
        f"the module's output must hold a floating-point tensor to train on; got {type(output).__name__}: give a loss"
    )


def sum_of_first_tensor(output: object) -> Tensor:
    """Sum the first floating-point tensor of a module's output, in float32."""
    return first_tensor(output).float().sum()


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast as loading a checkpoint of that dtype does: what no checkpoint holds (RoPE's frequencies) keeps its own."""
    kept = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name in part._non_persistent_buffers_set
    ]
    module.to(dtype)
    for part, name, buffer in kept:
        setattr(part, name, buffer)


def _switch_dropout_off(module: Any) -> None:
    """Set to 0 every probability that a module or a config holds under a name with "drop" in it."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for holder in (part, getattr(part, "config", None)):
            held = {} if holder is None else vars(holder)
            off = {name: 0.0 for name, value in held.items() if "drop" in name and isinstance(value, float)}
            if off and getattr(getattr(holder, "__dataclass_params__", None), "frozen", False):
                value: Any = holder  # which others may hold too
                part.config = replace(value, **off)
                continue
            for name in off:
                setattr(holder, name, 0.0)


def _set_attention(module: Any, workload: Workload) -> None:
    if not hasattr(module, "set_attn_implementation"):
        if workload.checkpoint == "selective":
            own = [part for part in module.modules() if hasattr(part, "recomputes")]
            for part in own:
                part.recomputes = True
            if not own:
                raise UnsupportedError(
                    "selective checkpointing needs a Hugging Face model or headwise's own attention; "
                    f"got {type(module).__name__}: give 'none', 'full'"
                )
        return
    try:
        if workload.checkpoint == "selective":
            recompute_attention(module, workload.attention)
        else:
            module.set_attn_implementation(workload.attention)
    except (ValueError, ImportError) as error:
        raise UnsupportedError(
            f"the model must have the attention implementation that is asked for; {type(module).__name__} has no "
            f"{workload.attention!r} that can be switched: give another attention or checkpoint"
        ) from error


def _checkpoint_layers(module: Any) -> None:
    if hasattr(module, "activation_checkpointing_enable"):
        try:
            module.activation_checkpointing_enable()  # transformers' own
        except ValueError as error:
            raise UnsupportedError(f"{type(module).__name__} must support checkpointing; {error}") from error
        return
    lists = find_lists(nn.ModuleDict({"module": module}), (nn.ModuleList,))  # the module itself may be one
    layers = list(dict.fromkeys(layer for layers in lists.values() for layer in layers))  # one may stand in many places
    if not layers:
        raise UnsupportedError(
            f"full checkpointing needs a ModuleList of equal layers, or a Hugging Face model; {type(module).__name__} "
            "has neither: checkpoint inside the module"
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


class _DeferredScores(nn.Module):
    """Stands in the place of an output projection and hands on what it reads; the loss projects it piece by piece."""

    def __init__(self, projection: nn.Module):
        super().__init__()
        self.projection = projection

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


def _defer_scores(module: Any) -> None:
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    changes = [name for name in _SCORE_CHANGES if getattr(getattr(module, "config", None), name, None) not in (None, 1)]
    if head is None or changes:
        raise UnsupportedError(
            "the chunked loss needs a Hugging Face model whose last step is its output projection; got "
            f"{type(module).__name__}{' with ' + ', '.join(changes) if changes else ''}: give loss 'cross_entropy'"
        )
    path = next(path for path, part in module.named_modules() if part is head)
    module.set_submodule(path, _DeferredScores(head))


def _chunked_cross_entropy(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    def piece(states: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(head(states).float(), targets, reduction="sum")

    pieces = zip(hidden.flatten(0, -2).chunk(LOSS_CHUNKS), labels.chunk(LOSS_CHUNKS), strict=True)
    total = sum(checkpoint(piece, states, targets, use_reentrant=False) for states, targets in pieces)
    return total / (labels != IGNORED_LABEL).sum()  # type: ignore[no-any-return]


def _tokens(inputs: Inputs) -> Tensor:
    named = inputs if isinstance(inputs, Mapping) else {}
    for tensor in [named.get("labels"), named.get("input_ids"), *tree_leaves(inputs)]:
        if isinstance(tensor, Tensor) and not tensor.is_floating_point():
            return tensor
    raise UnsupportedError(
        "cross-entropy needs tokens among the inputs, to predict each one; got none: give loss 'sum'"
    )


def _next_tokens(tokens: Tensor) -> Tensor:
    """Return for every token the one after it, and for the last of each text a label that is left out."""
    return functional.pad(tokens, (0, 1), value=IGNORED_LABEL)[..., 1:].contiguous().view(-1)
