"""Reports of made-up numbers for the tests of the page; read by conftest files, never imported."""

import math
import random

from headwise.api.results import FlopsSection, MemorySection, ModelSummary, ParametersSection, Report
from headwise.cost.results import Device, FitVerdict, FlopCount, ParameterCount, StepMemory
from headwise.cost.workload import Workload
from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection, Role

ROLES = ("previous token", "next token", "first token", "self", "separator")
HOSTILE_TOKENS = (
    "[CLS]",
    "<script>window.hacked=1</script>",
    "</script>",
    "<!--",
    "-->",
    "<img src=x onerror=window.hacked=1>",
    '"double"',
    "'single'",
    "`${1+1}`",
    "&amp;",
    "\\u003c",
    "{{ 7*7 }}",
    "注意力",
    "アテンション",
    "🧠👩‍🔬",
    "انتباه",
    "\n",
    " ",
    "\u2028",
    "\u202eback",
    "a" * 120,
    "[SEP]",
)
PROSE = (
    "[CLS] an object stays alive as long as something refers to it ; when nothing does , its memory may be given back "
    "at once or later , and a program must not depend on when . names are bound in a scope , and a scope that lies "
    "inside another sees the names of the outer one unless it binds them itself . an error leaves the block in which "
    "it arose and walks outward until a handler takes it , and the part between is closed in good order on the way . "
    "a loop that never ends is not an error , only a long wait ; whoever starts it should know how to stop it [SEP]"
)
PROSE_TOKENS = tuple(PROSE.split())


def make_weights(num_tokens, layer, head, *, causal, seed=0):
    """Rows of weights: head 2 of layer 0 looks one back, head 1 at the first token, the others somewhere near."""
    rng = random.Random(f"{seed} {layer} {head}")
    width, sharp = rng.uniform(2, 40), rng.uniform(0.5, 4)
    offset, sink = rng.randint(-6, 6), rng.choice([0, 0, 1.5, 4])
    rows = []
    for query in range(num_tokens):
        scores = []
        for key in range(num_tokens):
            score = -(((key - query - offset) / width) ** 2) + sharp * rng.gauss(0, 0.7) + sink * (key == 0)
            if (layer, head) == (0, 2):
                score += 14 * (key == max(0, query - 1))
            if (layer, head) == (3 % max(1, layer + 1), 1):
                score += 6 * (key == 0)
            scores.append(-math.inf if causal and key > query else score)
        exponentials = [math.exp(score - max(scores)) for score in scores]
        rows.append([value / sum(exponentials) for value in exponentials])
    return rows


def make_head(layer, head, rows):
    """Statistics of one head, from its rows."""
    length = len(rows)
    entropies = [-sum(w * math.log(w) for w in row if w > 0) for row in rows]
    roles = {
        "previous token": [row[i - 1] for i, row in enumerate(rows) if i],
        "next token": [row[i + 1] for i, row in enumerate(rows) if i + 1 < length],
        "first token": [row[0] for row in rows],
        "self": [row[i] for i, row in enumerate(rows)],
        "separator": [row[-1] for row in rows],
    }

    def mean(values):
        return sum(values) / len(values) if values else math.nan

    return HeadStatistics(
        layer=layer,
        head=head,
        entropy=mean(entropies),
        normalized_entropy=mean([e / math.log(length) for e in entropies]) if length > 1 else math.nan,
        sparsity=mean([sum(w < 0.1 / length for w in row) / length for row in rows]),
        distance=mean([sum(w * abs(q - k) for k, w in enumerate(row)) for q, row in enumerate(rows)]),
        sink_mass=mean([row[0] for row in rows]),
        max_weight=mean([max(row) for row in rows]),
        roles=tuple(
            Role(name=n, score=mean(v) if v else None, holds=bool(v) and mean(v) >= 0.5) for n, v in roles.items()
        ),
    )


def make_inspection(num_layers=2, num_heads=3, tokens=HOSTILE_TOKENS, *, with_maps=True, causal=False, notes=()):
    """An inspection whose statistics belong to its maps."""
    heads, maps = [], []
    for layer in range(num_layers):
        for head in range(num_heads):
            rows = make_weights(len(tokens), layer, head, causal=causal)
            heads.append(make_head(layer, head, rows))
            weights = bytes(round(255 * math.sqrt(w)) for row in rows for w in row)
            maps.append(
                AttentionMap(layer=layer, head=head, num_queries=len(rows), num_keys=len(rows), weights=weights)
            )
    return Inspection(
        heads=tuple(heads),
        maps=tuple(maps) if with_maps else (),
        tokens=tuple(tokens) if with_maps else (),
        num_texts=24,
        num_windows=24,
        num_tokens=2881,
        window=126,
        is_causal=causal,
        notes=notes,
    )


def make_report(heads=None, *, name="all-MiniLM-L6-v2", **changes):
    """A report with every section filled in; `changes` replaces fields of it."""
    count = ParameterCount(attention=3_548_160, feed_forward=7_089_408, embedding=11_917_824, norm=9_984, other=147_840)
    device = Device(
        name="A100-40GB",
        description="NVIDIA A100, 40 GB",
        memory_bytes=42_298_834_944,
        kind="cuda",
        source="total memory that the driver reports",
        date="2026-11-29",
    )
    fields = {
        "model": ModelSummary(
            name=name,
            source="/models/all-MiniLM-L6-v2",
            model_type="bert",
            num_layers=6,
            num_heads=12,
            num_kv_heads=12,
            embed_dim=384,
            head_dim=32,
            max_positions=512,
        ),
        "workload": Workload(batch=2, seq=128),
        "parameters": ParametersSection(predicted=count, counted=count),
        "flops": FlopsSection(
            forward=FlopCount(dense=5_738_987_520, attended=5_738_987_520),
            train=FlopCount(dense=17_216_962_560, attended=17_216_962_560),
            counted_forward=FlopCount(dense=5_738_987_520, attended=None),
            notes=("The pooler's product is counted in both.",),
        ),
        "memory": MemorySection(
            predicted=StepMemory(
                parameter_bytes=90_852_864, saved_bytes=74_200_064, peak_bytes=370_123_456, peak_moment="optimizer step"
            ),
            predicted_for="this machine's CPU",
            measured=StepMemory(
                parameter_bytes=90_852_864, saved_bytes=74_462_208, peak_bytes=371_909_120, peak_moment="optimizer step"
            ),
            saved_gap_percent=-0.352,
            peak_gap_percent=-0.480,
            kv_cache_bytes=None,
            kv_cache_bytes_per_token=None,
            kv_cache_dtype=None,
            score_matrix_bytes=1_572_864,
            fit=FitVerdict(
                fits="yes",
                device=device,
                peak_bytes=378_123_456,
                unmodelled_low_bytes=300_000_000,
                unmodelled_high_bytes=900_000_000,
                reason="The peak and the most that is not modelled stay under the capacity.",
            ),
            notes=("An encoder keeps no key/value cache.",),
        ),
        "heads": heads,
        "heads_notes": (),
        "seconds": 31.4,
    }
    return Report(**{**fields, **changes})
