"""Which implementations can be played on a tape: those of transformers 5.24, by `model_type`."""

from headwise.config.model import ModelConfig
from headwise.config.vision_model import COMPATIBLE, GrowingPatches, MapPlaces
from headwise.cost.step.families.bert import BERT, DISTILBERT, ROBERTA
from headwise.cost.step.families.deepseek import DEEPSEEK_V3
from headwise.cost.step.families.gpt2 import GPT2
from headwise.cost.step.families.gpt_neox import GPT_NEOX
from headwise.cost.step.families.gpt_oss import GPT_OSS
from headwise.cost.step.families.headwise import HEADWISE
from headwise.cost.step.families.llama import (
    GEMMA,
    GEMMA2,
    GEMMA3,
    LLAMA,
    MIXTRAL,
    OLMO2,
    PHI3,
    QWEN2_MOE,
    SMOLLM3,
    STARCODER2,
)
from headwise.cost.step.families.qwen3_next import QWEN3_NEXT
from headwise.cost.step.families.t5 import T5
from headwise.cost.step.families.vision import C3TR, PATCH_ENCODER
from headwise.cost.step.families.vit import VIT
from headwise.cost.step.families.yolov5 import YOLOV5, require_played
from headwise.cost.step.oddities import find_oddity
from headwise.cost.step.run import Family
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

FAMILIES = {
    "bert": BERT,
    "deepseek_v3": DEEPSEEK_V3,
    "distilbert": DISTILBERT,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "gpt_oss": GPT_OSS,
    "headwise": HEADWISE,
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": MIXTRAL,
    "olmo2": OLMO2,
    "phi3": PHI3,
    "qwen2": LLAMA,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": LLAMA,
    "qwen3_moe": LLAMA,
    "qwen3_next": QWEN3_NEXT,
    "roberta": ROBERTA,
    "smollm3": SMOLLM3,
    "starcoder2": STARCODER2,
    "t5": T5,
    "vit": VIT,
    "xlm-roberta": ROBERTA,
}
"""The forward pass of each `model_type`."""


def family_of(config: ModelConfig, workload: Workload) -> Family:
    """Return how the models of a config's `model_type` run, or raise UnsupportedError where that is not known.

    Raises:
        UnsupportedError: the `model_type` is not known, the implementation that is known has no such layers or
            attention, or checkpointing of it is not known.
    """
    if isinstance(config.patches, GrowingPatches):  # of image_model: it has no other parts
        if config.model_type == COMPATIBLE:
            require_played(workload)
            return YOLOV5
        return C3TR if isinstance(config.patches, MapPlaces) else PATCH_ENCODER
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UnsupportedError(
            f"memory is predicted for model_type {', '.join(FAMILIES)}; got {config.model_type!r}: measure the module"
        )
    if workload.attention == "sdpa" and not family.has_sdpa:
        raise UnsupportedError(
            f"transformers has {config.model_type!r} with eager attention only; got 'sdpa': give attention 'eager'"
        )
    if family is T5 and workload.checkpoint == "full":
        raise UnsupportedError(
            "full checkpointing of layers that share a bias is not predicted; got model_type 't5': measure the module"
        )
    missing = [name for name in family.tables if not getattr(config, name)]
    if missing:
        raise UnsupportedError(
            f"a model of model_type {config.model_type!r} must have {', '.join(missing)}; got none: measure the module"
        )
    if oddity := find_oddity(config, family):
        raise UnsupportedError(
            f"a layer or model of model_type {config.model_type!r} has another form; got {oddity}: measure the module"
        )
    return family
