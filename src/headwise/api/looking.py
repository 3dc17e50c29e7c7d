"""The heads of a loaded model, looked at on texts, on the default text, or on random input."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwise.api.example import beside, example_inputs
from headwise.api.images_in import look_at_image, look_at_pixels
from headwise.api.page_budget import count_heads, keep
from headwise.errors import TextError
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.images.inspect_image import reads_images_alone
from headwise.inspection.images.patches import image_in
from headwise.inspection.inspect import inspect_inputs, inspect_reading, inspect_stacks, inspect_stacks_of_inputs
from headwise.inspection.results import Inspection
from headwise.inspection.texts.default_text import default_texts
from headwise.inspection.texts.pairs import is_encoder_decoder
from headwise.inspection.texts.prepare import prepare_texts, require_reader
from headwise.inspection.texts.windows import UNKNOWN_LENGTH, model_length
from headwise.loading.module import LoadedModule

DEFAULT_TEXT_TOKENS = 128  # a paragraph of the default text: 126 tokens and the two that BERT puts around them
MAX_TEXT_TOKENS = 2**15  # of a user's text: 64 full windows of BERT, half a minute on two cores
EXAMPLE_SEQ = 128  # tokens of the example input whose heads are shown where there is no tokenizer
RANDOM_INPUT = "There is no tokenizer: these are heads on random input, not on a text."
RANDOM_PIXELS = "No image was given: these are heads on random pixels."
ENCODER_ALONE = "These are the heads of the encoder; headwise inspect shows those of the decoder, too."
MAIN = "main"  # what the only stack of a model is called here


@dataclass(frozen=True, kw_only=True)
class Read:
    """What a model reads, and how.

    Args:
        texts: None = the default text, or `inputs`, or random input where there is no tokenizer.
        targets, generate: as of `inspect_texts`.
        inputs: keyword arguments of one forward pass, in place of texts.
        window: tokens that are read at once. Default: the model's length.
        max_length: tokens of each text. Default: 128 of the default text, 32,768 of another.
        map_tokens: tokens that maps cover. Default: as many as let a page stay small.
        stack: the stack of layers, where a model has several. Default: all.
        detail: what is read beside the statistics that cost little.
        num_parts: how often a page shows as many heads.
        image, processor, folder: as of `look_at_image`; None = no image.
    """

    texts: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    generate: int | None = None
    inputs: Mapping[str, Any] | None = None
    window: int | None = None
    max_length: int | None = None
    map_tokens: int | None = None
    stack: str | None = None
    detail: Detail = NO_DETAIL
    num_parts: int = 1
    image: Any = None
    processor: Callable[..., Any] | None = None
    folder: str | os.PathLike[str] | None = None

    @property
    def own_texts(self) -> Sequence[str]:
        """Return the texts, or the default text."""
        return default_texts() if self.texts is None else self.texts

    def length_of_texts(self, loaded: LoadedModule) -> int:
        """Return the tokens of each text after which the rest is dropped."""
        if self.max_length is not None:
            return self.max_length
        if self.texts is None:
            return DEFAULT_TEXT_TOKENS
        # a pass over all tokens at once may take memory in their square, and such a model names no length of its own
        is_whole = self.generate is not None or is_encoder_decoder(loaded.module)
        return UNKNOWN_LENGTH if is_whole and model_length(loaded.module, loaded.tokenizer) is None else MAX_TEXT_TOKENS


def look_at_heads(
    loaded: LoadedModule,
    texts: Sequence[str] | None = None,
    *,
    seq: int = EXAMPLE_SEQ,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Look at the heads of a model's only stack; of an encoder-decoder that has a tokenizer, at those of its encoder.

    Args:
        loaded: the model.
        texts: what it reads; None = the default text, or random input of `seq` tokens at most where there is no
            tokenizer.
        seq: tokens of random input.
        progress: called with the windows that are done and how many there are.

    Raises:
        HeadwiseError: the attention cannot be read, or the tokenizer cannot read the texts.
    """
    if loaded.tokenizer is None or not is_encoder_decoder(loaded.module):
        return look_at_stacks(loaded, Read(texts=texts), seq=seq, only_one=True, progress=progress)[MAIN]
    encoder: Any = loaded.module.get_encoder()  # type: ignore[operator]
    part = replace(loaded, module=encoder)
    found = look_at_stacks(part, Read(texts=texts), seq=seq, only_one=True, progress=progress)[MAIN]
    return replace(found, notes=(ENCODER_ALONE, *found.notes))


def look_at_stacks(
    loaded: LoadedModule,
    read: Read,
    *,
    seq: int = EXAMPLE_SEQ,
    only_one: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Inspection]:
    """Look at the heads of all stacks of a model, or of the one that is named, in one pass.

    Args:
        loaded: the model.
        read: what it reads.
        seq: tokens of random input.
        only_one: whether a model without a name for its stacks must have one alone.
        progress: called with the windows that are done and how many there are.

    Returns:
        What the heads do, by the name of the stack; "main" where the model has one stack of self-attention and no name
        is given.

    Raises:
        HeadwiseError: the attention cannot be read, or the texts do not go with the model.
    """
    if read.image is not None:
        image = look_at_image(
            loaded,
            read.image,
            processor=read.processor,
            folder=read.folder,
            map_tokens=read.map_tokens,
            stack=read.stack,
            detail=read.detail,
            num_parts=read.num_parts,
        )
        return {MAIN: image}
    if read.inputs is not None or loaded.tokenizer is None:
        return _on_inputs(loaded, read, seq, only_one)
    require_reader(loaded.module)
    texts = read.own_texts
    if read.texts is None and read.generate is not None and not is_encoder_decoder(loaded.module):
        texts = texts[:1]
    if read.texts is None and read.targets is not None:
        raise TextError("a target belongs to a text: give the text that the encoder reads, too")
    reading = prepare_texts(
        loaded.module,
        loaded.tokenizer,
        texts,
        targets=read.targets,
        generate=read.generate,
        max_length=read.length_of_texts(loaded),
        window=read.window,
    )
    num_heads = count_heads(loaded) * read.num_parts
    kept = keep(num_heads, reading.longest_shown, map_tokens=read.map_tokens, detail=read.detail)
    if read.stack is None and (only_one or not is_encoder_decoder(loaded.module)):
        return {
            MAIN: inspect_reading(
                loaded.module, reading, max_map_tokens=kept.map_tokens, progress=progress, detail=kept.detail
            )
        }
    return inspect_stacks(
        loaded.module,
        reading,
        stack=read.stack,
        max_map_tokens=kept.map_tokens,
        progress=progress,
        detail=kept.detail,
    )


def _on_inputs(loaded: LoadedModule, read: Read, seq: int, only_one: bool) -> dict[str, Inspection]:
    for name, value in (("generate", read.generate), ("targets", read.targets), ("window", read.window)):
        if value is not None and (read.inputs is not None or name != "window"):
            raise TextError(
                f"{name} goes with a text that a tokenizer reads; these are inputs of one forward pass: leave it out"
            )
    notes: tuple[str, ...] = ()
    inputs = read.inputs
    if inputs is None:
        random = example_inputs(loaded.module, batch=1, seq=min(seq, EXAMPLE_SEQ))
        inputs = beside(loaded.module, random)
        notes = (RANDOM_INPUT if image_in(inputs) is None else RANDOM_PIXELS,)
    lengths = [value.shape[1] for value in inputs.values() if getattr(value, "ndim", 0) >= 2]
    num_heads = count_heads(loaded) * read.num_parts
    kept = keep(num_heads, max(lengths, default=0), map_tokens=read.map_tokens, detail=read.detail)
    alone = read.stack is None and (only_one or not is_encoder_decoder(loaded.module))
    if alone and image_in(inputs) is not None and reads_images_alone(loaded.module):
        found = {
            MAIN: look_at_pixels(
                loaded,
                inputs,
                map_tokens=read.map_tokens,
                notes=notes,
                detail=read.detail,
                num_parts=read.num_parts,
            )
        }
    elif alone:
        one = inspect_inputs(loaded.module, inputs, max_map_tokens=kept.map_tokens, notes=notes, detail=kept.detail)
        found = {MAIN: one}
    else:
        found = inspect_stacks_of_inputs(
            loaded.module,
            inputs,
            stack=read.stack,
            max_map_tokens=kept.map_tokens,
            notes=notes,
            detail=kept.detail,
        )
    return {name: replace(each, is_example=read.inputs is None) for name, each in found.items()}
