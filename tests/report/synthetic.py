"""Reports of made-up numbers for the tests of the page; read by conftest files, never imported."""

import math
import random
import struct
from dataclasses import fields

from headwise.api.inspect_results import InspectedModel, InspectedPart
from headwise.api.results import FlopsSection, MemorySection, ModelSummary, ParametersSection, Report
from headwise.cost.results import Device, FitVerdict, FlopCount, ParameterCount, StepMemory
from headwise.cost.workload import Workload
from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection, Role, TopKeys

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


def make_weights(num_tokens, layer, head, *, causal, seed=0, num_keys=None):
    """Rows of weights: head 2 of layer 0 looks one back, head 1 at the first token, the others somewhere near."""
    rng = random.Random(f"{seed} {layer} {head}")
    width, sharp = rng.uniform(2, 40), rng.uniform(0.5, 4)
    offset, sink = rng.randint(-6, 6), rng.choice([0, 0, 1.5, 4])
    rows = []
    for query in range(num_tokens):
        scores = []
        for key in range(num_keys or num_tokens):
            if causal and key > query:
                scores.append(-math.inf)
                continue
            score = -(((key - query - offset) / width) ** 2) + sharp * rng.gauss(0, 0.7) + sink * (key == 0)
            if (layer, head) == (0, 2):
                score += 14 * (key == max(0, query - 1))
            if (layer, head) == (3 % max(1, layer + 1), 1):
                score += 6 * (key == 0)
            scores.append(score)
        exponentials = [math.exp(score - max(scores)) for score in scores]
        rows.append([value / sum(exponentials) for value in exponentials])
    return rows


def make_map(layer, head, rows, num_tokens=None):
    """The map of the first tokens."""
    kept = [row[:num_tokens] for row in rows[:num_tokens]]
    weights = bytes(round(255 * math.sqrt(w)) for row in kept for w in row)
    return AttentionMap(layer=layer, head=head, num_queries=len(kept), num_keys=len(kept[0]), weights=weights)


def make_overview(layer, head, rows, tile):
    """The map of the whole text in tiles: of keys together, the mean over queries."""
    queries, keys = range(0, len(rows), tile), range(0, len(rows[0]), tile)
    tiles = [[sum(map(sum, (row[k : k + tile] for row in rows[q : q + tile]))) for k in keys] for q in queries]
    sizes = [min(tile, len(rows) - q) for q in queries]
    weights = bytes(
        min(255, round(255 * math.sqrt(w / size))) for row, size in zip(tiles, sizes, strict=True) for w in row
    )
    return AttentionMap(
        layer=layer, head=head, num_queries=len(queries), num_keys=len(keys), weights=weights, tile=tile
    )


def make_top_keys(layer, head, rows, num_keys):
    """The heaviest keys of each query; a key without weight is none."""
    keys, weights = [], []
    for row in rows:
        heaviest = sorted((key for key, w in enumerate(row) if w > 0), key=lambda key: -row[key])[:num_keys]
        keys += heaviest + [-1] * (num_keys - len(heaviest))
        weights += [row[key] for key in heaviest] + [0.0] * (num_keys - len(heaviest))
    packed = struct.pack(f"<{len(keys)}i", *keys), struct.pack(f"<{len(weights)}f", *weights)
    return TopKeys(layer=layer, head=head, num_queries=len(rows), num_keys=num_keys, keys=packed[0], weights=packed[1])


def make_head(layer, head, rows):
    """Statistics of one head, from its rows."""
    entropies = [-sum(w * math.log(w) for w in row if w > 0) for row in rows]
    roles = {
        "previous token": [row[i - 1] for i, row in enumerate(rows) if 0 < i <= len(row)],
        "next token": [row[i + 1] for i, row in enumerate(rows) if i + 1 < len(row)],
        "first token": [row[0] for row in rows],
        "self": [row[i] for i, row in enumerate(rows) if i < len(row)],
        "separator": [row[-1] for row in rows],
    }

    def mean(values):
        return sum(values) / len(values) if values else math.nan

    return HeadStatistics(
        layer=layer,
        head=head,
        entropy=mean(entropies),
        normalized_entropy=mean([e / math.log(len(rows[0])) for e in entropies]) if len(rows[0]) > 1 else math.nan,
        sparsity=mean([sum(w < 0.1 / len(row) for w in row) / len(row) for row in rows]),
        distance=mean([sum(w * abs(q - k) for k, w in enumerate(row)) for q, row in enumerate(rows)]),
        sink_mass=mean([row[0] for row in rows]),
        max_weight=mean([max(row) for row in rows]),
        roles=tuple(
            Role(name=n, score=mean(v) if v else None, holds=bool(v) and mean(v) >= 0.5) for n, v in roles.items()
        ),
    )


def make_inspection(
    num_layers=2,
    num_heads=3,
    tokens=HOSTILE_TOKENS,
    *,
    with_maps=True,
    causal=False,
    notes=(),
    key_tokens=None,
    map_tokens=None,
    tile=None,
    top_keys=0,
    seed=0,
    **more,
):
    """An inspection whose statistics belong to its maps.

    `map_tokens` cuts the maps, `tile` adds overviews, `top_keys` the heaviest keys of each query; `more` are fields.
    """
    heads, maps, overviews, tops = [], [], [], []
    for layer in range(num_layers):
        for head in range(num_heads):
            num_keys = None if key_tokens is None else len(key_tokens)
            rows = make_weights(len(tokens), layer, head, causal=causal, seed=seed, num_keys=num_keys)
            heads.append(make_head(layer, head, rows))
            maps.append(make_map(layer, head, rows, map_tokens))
            if tile:
                overviews.append(make_overview(layer, head, rows, tile))
            if top_keys:
                tops.append(make_top_keys(layer, head, rows, top_keys))
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
        overviews=tuple(overviews),
        top_keys=tuple(tops),
        key_tokens=key_tokens,
        **more,
    )


def make_inspected(inspection=None, *others, model="a model", **more):
    """An InspectedModel of an inspection; `others` are (name, inspection, comparable)."""
    inspection = make_inspection() if inspection is None else inspection
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    rest = tuple(InspectedPart(name=n, inspection=i, comparable=c) for n, i, c in others)
    return InspectedModel(**known, model=model, source="a module in hand", others=rest, **more)


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
