"""An explanation of one head as plain text: the keys with their weights, then what made their scores."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from headwise.inspection.walkthrough.results import (
    HeadExplanation,
    ScorePart,
    format_percent,
    format_signed,
    format_wavelength,
    or_zero,
    order_brought,
    order_keys,
)

COLUMNS = 80
MAX_KEYS = 12
MAX_PARTS = 6
BAR = "█"
BAR_CELLS = 16
TOKEN_CELLS = 22

Row = Sequence[str]


def write_explanation(told: HeadExplanation) -> str:
    """Write an explanation within 80 columns: the heaviest keys, their largest dimensions, what they bring."""
    paragraphs = [list(_head_lines(told)), list(_key_lines(told))]
    paragraphs += [list(_score_lines(told, number)) for number in range(len(told.scores))]
    if told.contrast is not None:
        paragraphs.append(list(_contrast_lines(told)))
    paragraphs.append(list(_output_lines(told)))
    paragraphs += [_fill(f"note: {note}") for note in dict.fromkeys(told.notes)]
    if told.page is not None:
        paragraphs.append([f"written: {told.page}"])
    return "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in paragraphs if lines)


def name_key(index: int, token: str) -> str:
    """Write a token's number and its word; a token without a word is its number."""
    word = _safe(token)
    return str(index) if word == str(index) else f"{index} {word}"


def _named(index: int, token: str) -> str:
    """Write a token in a sentence, cut where it is long."""
    name = name_key(index, token)
    return name if cell_len(name) <= TOKEN_CELLS else _fit(name, TOKEN_CELLS)


def name_dimensions(part: ScorePart) -> str:
    """Write the dimensions of a part: 7, or 7+23 for a rotation pair."""
    return "+".join(map(str, part.dimensions))


def _head_lines(told: HeadExplanation) -> Iterator[str]:
    query = _named(told.query, told.tokens[told.query])
    yield from _fill(f"{_safe(told.model)}, layer {told.layer}, head {told.head}: what token {query} reads")
    if told.scale is not None:
        terms = "".join(f" + {name}" for name in ("bias",) if told.keys and told.keys[0].bias is not None)
        capped = any(step.name == "capped" for step in told.steps)
        score = "softcap * tanh(scale * q.k / softcap)" if capped else "scale * q.k"
        yield from _fill(f"score = {score}{terms}, scale {told.scale:.4g}; weight = softmax of the scores")
    if told.scores and any(len(part.dimensions) > 1 for part in told.scores[0].parts):
        yield from _fill(
            "positions turn dimensions in pairs: a pair's sum depends on the distance of the two tokens alone, a "
            "single product on where they stand"
        )
    if told.kv_head is not None and told.kv_head != told.head:
        yield f"query head {told.head} reads key/value head {told.kv_head}"


def _key_lines(told: HeadExplanation) -> Iterator[str]:
    keys = order_keys(told)
    shown, rest = keys[:MAX_KEYS], keys[MAX_KEYS:]
    has_scores, has_bias = told.scale is not None, any(key.bias is not None for key in keys)
    head = ["key", *(["q.k"] if has_scores else []), *(["bias"] if has_bias else [])]
    head += [*(["score", "exp"] if has_scores else []), "weight", ""]
    rows: list[Row] = []
    for key in shown:
        row = [name_key(key.index, key.token)]
        row += [format_signed(key.product, 2)] if has_scores else []
        row += [format_signed(key.bias, 2)] if has_bias else []
        row += [format_signed(key.score), format_signed(key.exponential)] if has_scores else []
        rows.append([*row, format_signed(key.weight), _bar(key.weight)])
    if rest:
        blank = [""] * (len(head) - 3)
        rows.append([f"{len(rest)} others", *blank, format_signed(sum(key.weight for key in rest)), ""])
    if told.sink_weight is not None:
        blank = [""] * (len(head) - 3)
        rows.append(["sink, no key", *blank, format_signed(told.sink_weight), _bar(told.sink_weight)])
    yield from _table(head, rows)
    if told.hidden:
        yield from _fill(f"hidden by the mask: {_ranges(told.hidden)}")


def _score_lines(told: HeadExplanation, number: int) -> Iterator[str]:
    score = told.scores[number]
    name = _named(score.index, score.token)
    whole = f"score of {name}: {format_signed(score.score)}"
    if format_signed(score.scaled) != format_signed(score.score):
        whole += f" (scale * q.k is {format_signed(score.scaled)})"
    yield from _fill(f"{whole}, from {_count(score.parts)}")
    yield from _part_lines(score.parts, score.scaled)


def _contrast_lines(told: HeadExplanation) -> Iterator[str]:
    contrast = told.contrast
    assert contrast is not None
    one, other = _named(contrast.index, contrast.token), _named(contrast.against, contrast.against_token)
    ratio = "" if contrast.ratio is None else f", so {contrast.ratio:.3g} times the weight"
    by = f"{'lower' if contrast.score < 0 else 'higher'} by {format_signed(abs(contrast.score))}"
    yield from _fill(f"why {one} rather than {other}: its score is {by}{ratio}")
    if contrast.bias:
        yield f"of it {format_signed(contrast.bias)} is bias"
    yield from _part_lines(contrast.parts, contrast.scaled)


def _part_lines(parts: Sequence[ScorePart], whole: float) -> Iterator[str]:
    has_pairs = any(len(part.dimensions) > 1 for part in parts)
    head = [
        "pair" if has_pairs else "dimension",
        "q*k",
        "adds to score",
        "so far",
        *(["turns in"] if has_pairs else []),
    ]
    rows: list[Row] = []
    total = 0.0
    for part in parts[:MAX_PARTS]:
        total += part.score
        products = " ".join(format_signed(product, 2) for product in part.products)
        row = [name_dimensions(part), products, format_signed(part.score), format_signed(total)]
        rows.append([*row, *([format_wavelength(part.wavelength)] if has_pairs else [])])
    if rest := parts[MAX_PARTS:]:
        added = sum(part.score for part in rest)
        blank = [""] if has_pairs else []
        rows.append([f"{len(rest)} others", "", format_signed(added), format_signed(whole), *blank])
    yield from _table(head, rows)


def _output_lines(told: HeadExplanation) -> Iterator[str]:
    if told.output_norm is None:
        return
    written = "" if told.written_norm is None else f", {format_signed(told.written_norm)} after the output projection"
    yield from _fill(f"what the head puts out: norm {format_signed(told.output_norm)}{written}")
    keys = [key for key in told.keys if key.contribution is not None]
    if not keys:
        return
    has_written = keys[0].written is not None
    ordered = order_brought(told)
    head = ["key", "weight", "|v|", "weight*|v|", *(["|weight*v@w_o|"] if has_written else []), "share"]
    rows = []
    for key in ordered[:MAX_KEYS]:
        row = [name_key(key.index, key.token), format_signed(key.weight), format_signed(key.value_norm, 2)]
        row += [format_signed(key.contribution), *([format_signed(key.written)] if has_written else [])]
        rows.append([*row, format_percent(key.share)])
    if rest := ordered[MAX_KEYS:]:
        share = format_percent(None if rest[0].share is None else sum(or_zero(key.share) for key in rest))
        blank = [""] * (len(head) - 3)
        rows.append([f"{len(rest)} others", format_signed(sum(key.weight for key in rest)), *blank, share])
    yield from _table(head, rows)


def _table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Lay rows out in columns: the first and a last one without a heading to the left, the others to the right."""
    widths = [max(cell_len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    room = COLUMNS - 2 - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(TOKEN_CELLS // 2, min(room, TOKEN_CELLS)))
    for row in (head, *rows):
        cells = [_fit(row[0], widths[0])]
        for cell, width, title in zip(row[1:], widths[1:], head[1:], strict=True):
            blanks = " " * (width - cell_len(cell))
            cells.append(cell + blanks if title == "" else blanks + cell)
        yield "  " + "  ".join(cells)


def _fit(text: str, width: int) -> str:
    """Cut or fill a text to a width in cells: letters of some scripts take two."""
    if cell_len(text) <= width:
        return text + " " * (width - cell_len(text))
    return set_cell_size(text, width - 1) + "…"


def _fill(text: str) -> list[str]:
    """Break a sentence into lines, as wide as a terminal shows them."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if cell_len(longer) <= COLUMNS:
            lines[-1] = longer
        else:
            lines += ["  " + part for part in _chop(word)]
    return lines


def _chop(word: str) -> list[str]:
    """Cut a word that is wider than a line."""
    step = len(word) if cell_len(word) <= COLUMNS - 2 else COLUMNS // 2 - 2  # letters may be two cells wide
    return [word[start : start + step] for start in range(0, len(word), step)]


def _bar(weight: float) -> str:
    return BAR * round(BAR_CELLS * or_zero(weight))


def _count(parts: Sequence[ScorePart]) -> str:
    num_pairs = sum(len(part.dimensions) > 1 for part in parts)
    if not num_pairs:
        return f"{len(parts)} dimensions"
    rest = len(parts) - num_pairs
    return f"{num_pairs} rotation pairs" + (f" and {rest} dimensions that are not turned" if rest else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Write numbers as ranges: tokens 3 to 5, 9 (4 of them)."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    written = [str(start) if start == end else f"{start} to {end}" for start, end in runs[:6]]
    more = ", ..." if len(runs) > 6 else ""
    return f"token{'' if len(numbers) == 1 else 's'} {', '.join(written)}{more}" + (
        f" ({len(numbers)} in all)" if len(numbers) > 1 else ""
    )


def _safe(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
