"""Tokens that a model writes itself, greedily."""

import copy
from typing import Any

from jaxtyping import Int
from torch import Tensor

from headwise.errors import ModelError
from headwise.inspection.capture.quiet_passes import Inputs, quietly
from headwise.integrations.transformers_logs import without_advice

# what a checkpoint may say of how to draw tokens and of what to return, none of which is wanted
GREEDY = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "penalty_alpha": 0.0,  # contrastive search
    "return_dict_in_generate": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "output_logits": False,
}


def generated_ids(model: Any, inputs: Inputs, count: int, pad_id: int) -> list[list[int]]:
    """Return the ids that a Hugging Face model writes for each text of a batch, the likeliest token at each step.

    What its generation config forces or forbids (a first token, a repetition) holds. A text ends after its end token.

    Args:
        model: a model with an output head.
        inputs: of a forward pass, as a mapping.
        count: tokens that are written at most.
        pad_id: what stands after the end of a text that ends before others.

    Returns:
        Of a decoder the new tokens; of an encoder-decoder all that its decoder has read, its first token too.

    Raises:
        ModelError: the model does not write.
    """
    require_writer(model)
    told = copy.deepcopy(model.generation_config)  # one of our own: transformers checks the model's before keywords
    for name, value in {**GREEDY, "max_new_tokens": count, "pad_token_id": pad_id}.items():
        setattr(told, name, value)
    with quietly(model), without_advice():
        ids: Int[Tensor, "batch length"] = model.generate(**dict(inputs), generation_config=told)
    given = 1 if model.config.is_encoder_decoder else dict(inputs)["input_ids"].shape[1]
    end = getattr(model.generation_config, "eos_token_id", None)
    ends = set(end) if isinstance(end, list) else {end}
    rows: list[list[int]] = []
    for row in ids.tolist():
        stop = next((index + 1 for index, token in enumerate(row) if index >= given and token in ends), len(row))
        rows.append(row[0 if model.config.is_encoder_decoder else given : stop])
    return rows


def require_writer(model: Any) -> None:
    """Refuse a model that writes no text.

    Raises:
        ModelError: it is an encoder, or has no output head.
    """
    can_generate: Any = getattr(model, "can_generate", None)
    if can_generate is None or not can_generate():
        raise ModelError(
            f"{type(model).__name__} cannot generate: tokens are written by a decoder with an output head "
            "(a model for causal language modelling, or an encoder-decoder); leave generate out"
        )
