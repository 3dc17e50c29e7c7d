"""How large is the page of heads, how soon is it there? `python -m benchmarks.inspect_page [--json] [--loads N]`.

Pages of 12 layers of 12 heads over made-up weights: causal, noisy, with near keys and a heavy first token, so that they
compress no better than those of a model. A load is timed in a fresh tab of headless Chromium, from the call for the
file until the grid of heads has been painted; so is the opening of a head, and the choice of another token in it, each
until the frame after. Medians of N loads.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from headwise.api.inspect_results import InspectedModel
from headwise.inspection.results import AttentionMap, HeadStatistics, Role, TopKeys
from headwise.report.inspect_page import render_inspection

NUM_LAYERS = NUM_HEADS = 12
CASES = {512: 5_000_000, 4096: 15_000_000}  # tokens and the most bytes of a page
MOST_SECONDS = 2.0
NUM_PATTERNS = 6  # heads that differ; each head is packed by itself, so repeats save nothing
MAP_TOKENS, OVERVIEW_CELLS, TOP_KEYS = 512, 128, 16
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"


def weights_of(num_tokens: int, seed: int) -> torch.Tensor:
    """Return one head's weights, (T, T) in float32."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.arange(num_tokens)
    scores = 1.5 * torch.randn(num_tokens, num_tokens, generator=generator)
    scores -= (places[:, None] - places).abs() / (8 * 2.0**seed)
    scores[:, 0] += seed
    return scores.masked_fill_(places > places[:, None], -torch.inf).softmax(dim=-1)


def parts_of_head(weights: torch.Tensor) -> tuple[bytes, tuple[int, int, bytes], tuple[bytes, bytes]]:
    """Return the bytes of the exact map of the first tokens; cells, tile and bytes of the overview; the top keys."""
    length = len(weights)
    tile = -(-length // OVERVIEW_CELLS)
    cells = -(-length // tile)
    padded = torch.nn.functional.pad(weights, (0, cells * tile - length, 0, cells * tile - length))
    overview = padded.view(cells, tile, cells, tile).sum(dim=(1, 3)) / tile
    largest, keys = weights.topk(TOP_KEYS, dim=-1)
    keys = keys.masked_fill(largest == 0, -1)
    return (
        _bytes_of(weights[:MAP_TOKENS, :MAP_TOKENS]),
        (cells, tile, _bytes_of(overview)),
        (keys.int().numpy().tobytes(), largest.numpy().tobytes()),
    )


def _bytes_of(weights: torch.Tensor) -> bytes:
    return (255 * weights.clamp(max=1).sqrt()).round().byte().numpy().tobytes()


def make_result(num_tokens: int) -> InspectedModel:
    """Return what an inspection of a text of that length would give the page."""
    patterns = [parts_of_head(weights_of(num_tokens, seed)) for seed in range(NUM_PATTERNS)]
    heads, maps, overviews, tops = [], [], [], []
    for number in range(NUM_LAYERS * NUM_HEADS):
        place = {"layer": number // NUM_HEADS, "head": number % NUM_HEADS}
        exact, (cells, tile, overview), (keys, largest) = patterns[number % NUM_PATTERNS]
        share = number / (NUM_LAYERS * NUM_HEADS)
        heads.append(
            HeadStatistics(
                **place,
                entropy=5 * share,
                normalized_entropy=share,
                sparsity=1 - share,
                distance=90 * share,
                sink_mass=share**2,
                max_weight=share,
                roles=tuple(Role(name=name, score=share, holds=share > 0.9) for name in ("previous token", "self")),
            )
        )
        side = min(num_tokens, MAP_TOKENS)
        maps.append(AttentionMap(**place, num_queries=side, num_keys=side, weights=exact))
        overviews.append(AttentionMap(**place, num_queries=cells, num_keys=cells, weights=overview, tile=tile))
        tops.append(TopKeys(**place, num_queries=num_tokens, num_keys=TOP_KEYS, keys=keys, weights=largest))
    return InspectedModel(
        heads=tuple(heads),
        maps=tuple(maps),
        overviews=tuple(overviews),
        top_keys=tuple(tops),
        tokens=tuple(f"word{number % 997}" for number in range(num_tokens)),
        num_texts=1,
        num_windows=1,
        num_tokens=num_tokens,
        window=num_tokens,
        is_causal=True,
        model=f"{num_tokens} tokens",
        source="made-up weights",
    )


def load_times(page_path: Path, loads: int) -> list[dict[str, float]]:
    """Return for each load the seconds until the page, an opened head and a chosen token were painted."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(loads):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.goto(page_path.as_uri())
            page.wait_for_selector("#grid .cell")
            opened = page.evaluate(PAINTED) / 1000
            times = {"page": opened}
            for name, act in (
                ("head", "document.querySelectorAll('#grid .cell')[5].click()"),
                ("token", "document.querySelector('#lines-keys .line-row').click()"),
            ):
                before = page.evaluate(f"() => {{ const start = performance.now(); {act}; return start; }}")
                times[name] = (page.evaluate(PAINTED) - before) / 1000
            found.append(times)
            context.close()
        browser.close()
    return found


def measure(num_tokens: int, loads: int, folder: Path) -> dict[str, Any]:
    """Return the bytes of a page and the median seconds of its loads."""
    result = make_result(num_tokens)
    started = time.perf_counter()
    page = render_inspection(result)
    written = time.perf_counter() - started
    path = folder / f"{num_tokens}.html"
    path.write_text(page, encoding="utf-8")
    times = load_times(path, loads)
    shown = json.loads(page.split('id="heads-data">')[1].split("</script>")[0])["parts"][0]
    return {
        "tokens": num_tokens,
        "bytes": path.stat().st_size,
        "most_bytes": CASES[num_tokens],
        "map_tokens": shown["maps"][0]["num_queries"],
        "overview_cells": shown["overviews"][0]["num_queries"],
        "top_keys": shown["top_keys"][0]["num_keys"],
        "seconds_to_write": written,
        **{f"seconds_to_{name}": statistics.median(one[name] for one in times) for name in ("page", "head", "token")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--loads", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(num_tokens, options.loads, Path(folder)) for num_tokens in CASES]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        fits = row["bytes"] <= row["most_bytes"] and row["seconds_to_page"] <= MOST_SECONDS
        kept = (
            f"exact maps of {row['map_tokens']} tokens, overviews of {row['overview_cells']} cells, "
            f"{row['top_keys']} top keys; written in {row['seconds_to_write']:.1f} s"
        )
        print(
            f"{row['tokens']:>6,} tokens: {row['bytes'] / 1e6:5.2f} MB of {row['most_bytes'] / 1e6:.0f} ({kept}); "
            f"painted after {row['seconds_to_page']:.2f} s of {MOST_SECONDS:.0f}, a head after "
            f"{row['seconds_to_head']:.2f}, a token after {row['seconds_to_token']:.2f}{'' if fits else '  MISSED'}"
        )


if __name__ == "__main__":
    main()
