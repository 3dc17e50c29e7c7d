"""Which implementations can be played on a tape: those of transformers 5.24, by `model_type`."""

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step.families.bert import BERT, DISTILBERT, ROBERTA
from headwise.cost.step.families.deepseek import DEEPSEEK_V3
from headwise.cost.step.families.gpt2 import GPT2
from headwise.cost.step.families.gpt_neox import GPT_NEOX
from headwise.cost.step.families.headwise import HEADWISE
from headwise.cost.step.families.llama import GEMMA, GEMMA2, LLAMA, OLMO2, PHI3, QWEN_MOE
from headwise.cost.step.families.t5 import T5
from headwise.cost.step.families.vit import VIT
from headwise.cost.step.run import Family
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

FAMILIES = {
    "bert": BERT,
    "deepseek_v3": DEEPSEEK_V3,
    "distilbert": DISTILBERT,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "headwise": HEADWISE,
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "olmo2": OLMO2,
    "phi3": PHI3,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "qwen3_moe": QWEN_MOE,
    "roberta": ROBERTA,
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
    encoder_groups = config.encoder.block_groups if config.encoder is not None else ()
    for block, _ in (*config.block_groups, *encoder_groups):
        if oddity := _find_oddity(block, family):
            raise UnsupportedError(
                f"a layer of model_type {config.model_type!r} has another form; got {oddity}: measure the module"
            )
    return family


def _find_oddity(block: BlockConfig, family: Family) -> str | None:
    """Return what a block has that layers of its family, as they are known, have not."""
    attention = block.attention
    is_whole = not isinstance(attention, AttentionConfig) or not (
        attention.sink or attention.output_gate or attention.kv_layer is not None
    )
    oddities = (
        (not isinstance(attention, family.attention), type(attention).__name__),
        (not is_whole, "a sink, an output gate or keys of an earlier layer"),
        (
            not isinstance(getattr(attention, "position", None), family.positions),
            f"position {getattr(attention, 'position', None)!r}",
        ),
        (block.norm_placement not in family.norm_placements, f"norm_placement {block.norm_placement!r}"),
        (block.feed_forward.num_experts > 1 and not family.has_experts, "experts"),
        (block.feed_forward.router_bias or block.feed_forward.shared_gate, "a router's bias or a gate of experts"),
        (block.feed_forward.shared_hidden_dim > 0 and family is not DEEPSEEK_V3, "a shared expert"),
        (block.cross_attention is not None and family is not T5, "a cross_attention"),
        (block.parallel and family is not GPT_NEOX, "attention and feed-forward in parallel"),
    )
    return next((text for is_odd, text in oddities if is_odd), None)
