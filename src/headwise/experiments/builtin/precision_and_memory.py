"""Precision and memory: autocast, checkpointing and fused attention, on copying in texts of 256 tokens."""

from dataclasses import replace

from headwise.experiments.builtin.sources import ARTICLES
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published
from headwise.experiments.sequence_tasks import MultiOffsetCopy

REFERENCE, FUSED, AUTOCAST, SELECTIVE, FULL, BOTH = (
    "fp32, scores kept",
    "fp32, fused",
    "bf16 autocast, fused",
    "scores computed again",
    "blocks computed again",
    "bf16 autocast, blocks computed again, fused",
)
DAO = Published(
    text="fused attention is exact, needs memory linear in the length, and makes GPT-2 train 3 times faster",
    source="Dao et al. 2022, FlashAttention",
    differs="a GPU, texts of 1024 tokens; here a CPU, 256 tokens and a small model",
)
MICIKEVICIUS = Published(
    text="training in mixed precision loses no accuracy and takes about half the memory",
    source="Micikevicius et al. 2018, Mixed Precision Training",
    differs="float16 with a scaled loss on GPUs, convolutions and recurrent models",
)


def comparisons() -> tuple[Comparison, ...]:
    """Return one comparison: the same model and the same data, computed in six ways.

    Peaks are of one step, as torch's allocator counts them; `headwise.cost.memory.predict_step` foretells them from the
    same configs. On a CPU without matrix units for bfloat16 autocast is slower.
    """
    task = MultiOffsetCopy(seq_len=256)
    model = transformer_for(task, num_heads=8, num_layers=2, position="rotary")
    plain = Recipe(steps=100, batch_size=8, learning_rate=6e-3, warmup_steps=12, evaluate_every=25, impl="reference")
    recipes = {
        REFERENCE: plain,
        FUSED: replace(plain, impl="sdpa"),
        AUTOCAST: replace(plain, impl="sdpa", precision="amp-bf16"),
        SELECTIVE: replace(plain, checkpoint="selective"),
        FULL: replace(plain, checkpoint="full"),
        BOTH: replace(plain, impl="sdpa", precision="amp-bf16", checkpoint="full"),
    }
    return (
        Comparison(
            name="precision-and-memory",
            question="What do autocast, checkpointing and fused attention save, and does the loss suffer?",
            task=task,
            arms=tuple(Arm(name=name, model=model, recipe=recipe) for name, recipe in recipes.items()),
            recipe=plain,
            metric="loss",
            num_validation=32,
            num_test=64,
            claims=_claims(),
            published=(DAO, MICIKEVICIUS),
        ),
    )


def _claims() -> tuple[ClaimTest, ...]:
    less = ClaimTest(
        text="fused attention needs less memory than kept scores",
        source=ARTICLES,
        arm=FUSED,
        other=REFERENCE,
        expects="lower",
        quantity="peak_bytes",
    )
    faster = replace(less, text="fused attention trains faster", expects="higher", quantity="steps_per_second")
    return (
        less,
        faster,
        replace(less, text="half precision takes less memory (the articles: half)", arm=AUTOCAST, other=FUSED),
        replace(faster, text="half precision trains faster", arm=AUTOCAST, other=FUSED),
        ClaimTest(text="half precision costs accuracy: the loss is higher", source=ARTICLES, arm=AUTOCAST, other=FUSED),
        replace(less, text="checkpointing of whole blocks needs less memory", arm=FULL),
        replace(faster, text="checkpointing of whole blocks trains more slowly", arm=FULL, expects="lower"),
        replace(less, text="checkpointing of the scores alone needs less memory", arm=SELECTIVE),
    )
