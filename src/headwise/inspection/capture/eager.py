"""Reading the weights that a Hugging Face model returns itself, in eager mode."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, ModelError, describe
from headwise.inspection.capture.quiet_passes import Inputs, quietly, run_without_cache
from headwise.inspection.capture.stacks import CROSS, SELF, Stack
from headwise.integrations.layer_weights import GivenWeights, LayerWeights
from headwise.integrations.transformers_attention import keep_implementation, use_eager_attention

# field of a model's output -> name of the stack
FIELDS = {
    "attentions": SELF,
    "encoder_attentions": "encoder",
    "decoder_attentions": "decoder",
    "cross_attentions": CROSS,
}


class EagerReader:
    """Reads a model that returns its weights; holds all layers of a batch.

    Args:
        model: a Hugging Face model.
        num_layers: how many attention layers it has; None: as many as it returns weights of.
        reason: why it is not read on its own path.

    Attributes:
        stacks: known after the first pass.
    """

    def __init__(self, model: Any, num_layers: int | None, reason: str):
        self.model = model
        self.num_layers = num_layers
        self.reason = reason
        self.stacks: tuple[Stack, ...] = ()
        self.notes: tuple[str, ...] = (
            f"{type(model).__name__} was read in eager mode, since {reason}: "
            "there a weight of exactly 0 is taken for a hidden key.",
        )

    def read(self, inputs: Inputs, observer: Callable[[str, int, LayerWeights], None]) -> None:
        """Run the model once, showing every layer to `observer(name of its stack, layer, weights)`.

        Raises:
            ModelError: it does not return the weights of every layer, or what it returns is not one weight for each
                query and key.
        """
        with quietly(self.model), keep_implementation(self.model):
            use_eager_attention(self.model)
            try:
                output = run_without_cache(self.model, inputs, output_attentions=True, return_dict=True)
            except HeadwiseError:
                raise
            except Exception as error:  # of a model that ran without being asked for its weights
                self._refuse(f"no weights but {describe(error)}")
        found = {stack: getattr(output, field, None) or () for field, stack in FIELDS.items()}
        layers = [weights for attentions in found.values() for weights in attentions]
        shown = [weights for weights in layers if isinstance(weights, Tensor) and weights.dim() == 4]
        if not shown or len(shown) != len(layers) or self.num_layers not in (None, len(shown)):
            expected = "its" if self.num_layers is None else self.num_layers
            # some choose their attention when they are built, and not again
            advice = "" if shown else '; load it with attn_implementation="eager" to try again'
            self._refuse(f"weights for {len(shown)} of {expected} layers{advice}")
        for stack, attentions in found.items():
            for weights in attentions:
                self._require_weights(weights, stack, inputs)
        self.stacks = tuple(
            Stack(name=stack, is_cross=stack == CROSS, num_layers=len(attentions))
            for stack, attentions in found.items()
            if attentions
        )
        for stack, attentions in found.items():
            for layer, weights in enumerate(attentions):
                # a weight that is NaN says nothing of what is hidden: it must reach who counts NaNs
                observer(stack, layer, GivenWeights(weights=weights.float(), visible=weights != 0))

    def note_difference(self, inputs: Inputs) -> None:
        """Note it where the model computes something else in eager mode than as it is, by more than rounding."""
        with quietly(self.model):
            own = _first_tensor(run_without_cache(self.model, inputs, return_dict=True))
            with keep_implementation(self.model):
                use_eager_attention(self.model)
                eager = _first_tensor(run_without_cache(self.model, inputs, return_dict=True))
        if own is None or eager is None or own.shape != eager.shape or not own.numel():
            return
        gap = float((own - eager).abs().max())
        # each layer rounds by some eps of its largest numbers; a thousand of them are far more than rounding leaves
        if gap > 1000 * torch.finfo(own.dtype).eps * float(eager.abs().max()):
            self.notes += (
                f"In eager mode {type(self.model).__name__} computes something else than as it is set "
                f"({self.model.config._attn_implementation}): its outputs differ by up to {gap:.2g}. Shown is what it "
                "does in eager mode.",
            )

    def _require_weights(self, weights: Tensor, stack: str, inputs: Inputs) -> None:
        assert isinstance(inputs, Mapping)
        query_len, key_len = weights.shape[2:]
        tokens = next((inputs[name] for name in ("input_ids", "inputs_embeds") if name in inputs), None)
        is_whole = stack == CROSS or query_len == key_len
        if isinstance(tokens, Tensor) and stack in (SELF, "encoder"):
            is_whole = is_whole and query_len == tokens.shape[1]
        if not is_whole:
            self._refuse(f"{key_len} weights for each of {query_len} queries, not one for each token of the text")
        # a weight is off by a few eps of itself, the sum of S of them by no more than S eps; of float32, to which
        # models of float64 may round theirs
        slack = max(key_len, 8) * max(torch.finfo(dtype).eps for dtype in (weights.dtype, torch.float32))
        if bool((weights < 0).any()) or bool((weights.float().sum(-1) > 1 + slack).any()):
            self._refuse("numbers below 0, or that sum to more than 1")
        sums = weights.float().sum(-1)
        if bool(((sums > 0) & (sums < 1 - slack)).any()):  # 0: a query that sees nothing
            self._refuse("weights that sum to less than 1: some of what it reads is not among them")

    def _refuse(self, what: str) -> NoReturn:
        raise ModelError(
            f"the attention of {type(self.model).__name__} cannot be read: {self.reason}, and in eager mode "
            f"output_attentions=True returned {what}"
        )


def _first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of floats that a model puts out."""
    values = output.values() if isinstance(output, Mapping) else output
    return next((each for each in values if isinstance(each, Tensor) and each.is_floating_point()), None)
