"""What a fit is about: MODEL's config where it has one, and who tells the memory of its steps."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headwise.api.images import attention_of, require_no_image, take_image
from headwise.api.prediction import NO_CLOSED_FORM
from headwise.api.subject import find_content, find_images, find_name, find_on_paper, load
from headwise.api.summary import default_seq
from headwise.config.model import ModelConfig
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.setup import Predictor, Setup
from headwise.errors import HeadwiseError, UnknownArchitectureError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn

TRACED = "Steps are traced instead: the module's own code runs without numbers, and only some changes can be tried."


@dataclass(frozen=True, eq=False)
class FitSubject:
    """A model as far as a fit needs it: its config, what its config.json says, or the module; each may be missing.

    `attention`: the one that its module was made with, where that is told.
    """

    name: str
    source: str
    config: ModelConfig | None
    content: Mapping[str, Any] | None = None
    module: "nn.Module | None" = None
    notes: tuple[str, ...] = field(default=())
    attention: str | None = None

    def predictor_of(self, setup: Setup, *, is_attention_given: bool) -> tuple[Predictor, Setup, tuple[str, ...]]:
        """Return who tells the memory of a step of this model: the closed form, or a trace with notes that say why.

        Args:
            setup: the step.
            is_attention_given: False: a traced step has the attention that transformers gives the module by itself.

        Returns:
            The predictor, the setup with that attention and without checkpointing where it is none, and the notes.

        Raises:
            HeadwiseError: there is no closed form of the step, and nothing to trace.
        """
        if setup.workload.phase != "train":  # without a backward nothing is checkpointed
            setup = replace(setup, workload=replace(setup.workload, checkpoint="none"))
        if self.config is None:
            return self._traced(setup, is_attention_given, (TRACED,))
        closed_form = ClosedForm()
        try:
            closed_form.step(setup)
        except UnsupportedError:
            if setup.sharding is not None or (self.content is None and self.module is None):
                raise
            notes = (NO_CLOSED_FORM.format(self.config.model_type), TRACED)
            return self._traced(setup, is_attention_given, notes)
        return closed_form, setup, ()

    def _traced(
        self, setup: Setup, is_attention_given: bool, notes: tuple[str, ...]
    ) -> tuple[Predictor, Setup, tuple[str, ...]]:
        from headwise.api.traced_fit import Traced

        subject = self.content if self.module is None else self.module
        assert subject is not None
        traced = Traced(subject, self.name, config=self.config)
        if not is_attention_given:
            setup = replace(setup, workload=traced.with_own_attention(setup.workload))
        return traced, setup, notes


def find_subject(
    model: Any, *, head: bool, seq: int | None = None, image: int | None = None, stride: int | None = None
) -> FitSubject:
    """Find out what a MODEL is, from paper where that is enough.

    Args:
        model: MODEL, in any form of the command line, or a ModelConfig or a module in hand.
        head: read a bare model as its family's language model.
        seq: tokens of a text, as asked for.
        image, stride: of a model of images of any size.

    Raises:
        HeadwiseError: MODEL cannot be found or read, or takes no such image.
    """
    if model is None:
        raise HeadwiseError("model must be a MODEL, a ModelConfig or a module; got None")
    images = find_images(model)
    if images is not None:
        config = take_image(images[0], images[1], image=image, stride=stride, seq=seq)
        return FitSubject(config.name, images[2], config)
    try:
        paper = find_on_paper(model, kinds=("preset", "config", "checkpoint"), head=head)
    except UnknownArchitectureError:
        content = find_content(model)
        if content is None:
            raise
        require_no_image(find_name(model), None, image=image, stride=stride)
        return FitSubject(find_name(model), os.fspath(model), None, content)
    if paper is not None:
        config, source = paper
        require_no_image(config.name, config, image=image, stride=stride)
        content = find_content(model) if not isinstance(model, ModelConfig) else None
        return FitSubject(config.name, source, config, content)
    loaded, source = load(model)
    if loaded.images is not None:
        config = take_image(loaded.images, loaded.name, image=image, stride=stride, seq=seq)
        attention, notes = attention_of(loaded.module)
        return FitSubject(loaded.name, source, config, notes=(*loaded.notes, *notes), attention=attention)
    require_no_image(loaded.name, loaded.config, image=image, stride=stride)
    return FitSubject(loaded.name, source, loaded.config, module=loaded.module, notes=loaded.notes)


def length_of(subject: FitSubject, seq: int | None) -> int:
    """Return the length to reckon with: `seq`, else an image's tokens, else the smaller of 512 and the positions."""
    config, content = subject.config, subject.content
    if config is not None and config.patches:
        return config.patches.num_tokens if seq is None else seq
    if seq is not None:
        return seq
    return default_seq({"max_position_embeddings": config.max_positions} if config is not None else content or {})
