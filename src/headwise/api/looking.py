"""The heads of a loaded model, looked at on texts, on the default text, or on random input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

from headwise.api.example import example_inputs
from headwise.inspection.default_text import default_texts
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.inspect import inspect_inputs, inspect_texts
from headwise.inspection.results import Inspection
from headwise.loading.module import LoadedModule
from headwise.results import BYTES_PER_MIB

DEFAULT_TEXT_TOKENS = 128  # a paragraph of the default text: 126 tokens and the two that BERT puts around them
MAX_TEXT_TOKENS = 2**15  # of a user's text: 64 full windows of BERT, half a minute on two cores
EXAMPLE_SEQ = 128  # tokens of the example input whose heads are shown where there is no tokenizer
PAGE_MAP_BYTES = 3 * BYTES_PER_MIB  # all maps of a page together, so that a phone can open it
RANDOM_INPUT = "There is no tokenizer: these are heads on random input, not on a text."


def look_at_heads(
    loaded: LoadedModule,
    texts: Sequence[str] | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    window: int | None = None,
    max_length: int | None = None,
    map_tokens: int | None = None,
    seq: int = EXAMPLE_SEQ,
    detail: Detail = NO_DETAIL,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Look at the heads of a model.

    Args:
        loaded: the model.
        texts: what it reads; None = the default text, or `inputs`, or random input of `seq` tokens at most where there
            is no tokenizer.
        inputs: keyword arguments of one forward pass.
        window: tokens that are read at once. Default: the model's length.
        max_length: tokens of each text. Default: 128 of the default text, 32,768 of another.
        map_tokens: tokens that maps cover. Default: as many as let a page stay small.
        seq: tokens of random input.
        detail: what is read beside the statistics that cost little.
        progress: called with the windows that are done and how many there are.

    Raises:
        HeadwiseError: the attention cannot be read, or the tokenizer cannot read the texts.
    """
    covered = _map_tokens(loaded) if map_tokens is None else map_tokens
    if inputs is not None:
        return inspect_inputs(loaded.module, inputs, max_map_tokens=covered, detail=detail)
    if loaded.tokenizer is None:
        example = example_inputs(loaded.module, batch=1, seq=min(seq, EXAMPLE_SEQ))
        inspection = inspect_inputs(
            loaded.module, example, max_map_tokens=covered, notes=(RANDOM_INPUT,), detail=detail
        )
        return replace(inspection, is_example=True)
    longest = DEFAULT_TEXT_TOKENS if texts is None else MAX_TEXT_TOKENS
    return inspect_texts(
        loaded.module,
        loaded.tokenizer,
        default_texts() if texts is None else texts,
        max_length=longest if max_length is None else max_length,
        window=window,
        max_map_tokens=covered,
        progress=progress,
        detail=detail,
    )


def _map_tokens(loaded: LoadedModule) -> int:
    """Return how many tokens a map may cover so that all maps together stay within PAGE_MAP_BYTES."""
    if loaded.config is None:
        return EXAMPLE_SEQ
    num_heads = sum(block.attention.num_heads for block in loaded.config.blocks)
    return max(1, isqrt(PAGE_MAP_BYTES // num_heads))
