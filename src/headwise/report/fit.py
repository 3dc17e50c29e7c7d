"""A fit for the terminal: does it, what fills the device and when, what to change, how it is reckoned."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headwise.api.fit_results import FitPlan
from headwise.report.figures import model_facts
from headwise.report.fit_drawing import NeedBar, Sparkline
from headwise.report.fit_figures import (
    answer_sentence,
    format_range,
    largest_words,
    main_path,
    path_words,
    peak_words,
    step_facts,
    time_sentence,
)
from headwise.report.fit_tables import (
    changes_parts,
    history_table,
    more,
    sweep_parts,
    tensors_table,
    verification_table,
)
from headwise.report.headlines import VERDICT_TONES
from headwise.report.tensor_groups import group_tensors
from headwise.report.text import STYLES, notes_text, plain_text, print_renderable, safe_text

MAX_TENSORS = 10
MAX_PATHS = 2


def print_fit(plan: FitPlan) -> None:
    """Print a fit on stdout, in colours where that is a terminal."""
    print_renderable(fit_renderable(plan))


def fit_text(plan: FitPlan, *, width: int = 80) -> str:
    """Return a fit as lines of plain text, without colours, at most `width` columns wide."""
    return plain_text(fit_renderable(plan), width=width)


def fit_renderable(plan: FitPlan) -> RenderableType:
    """Return a fit as what rich prints; made for 80 columns."""
    return Group(*_parts(plan), *notes_text(plan.notes + (plan.verification.notes if plan.verification else ())))


def _parts(plan: FitPlan) -> Iterator[RenderableType]:
    yield from _answer(plan)
    if plan.timeline:
        yield Text()
        yield from _peak(plan)
    if plan.kernel is not None:
        yield safe_text("; ".join([f"attention kernel: {plan.kernel.name}", *plan.kernel.reasons]), style="dim")
    yield from changes_parts(plan.changes)
    if plan.sweep is not None:
        yield Text()
        yield from sweep_parts(plan.sweep)
    if plan.verification is not None:
        yield Text()
        yield verification_table(plan.verification)
    if plan.history:
        yield Text()
        yield from history_table(plan.history, plan.accuracy)
    if plan.page is not None:
        yield Text()
        yield safe_text(f"page: {plan.page}")


def _answer(plan: FitPlan) -> Iterator[RenderableType]:
    """Say whether it fits, what would make it fit and how far that goes, before any table."""
    yield safe_text(f"{plan.model.name} on {plan.device.name}", style="bold")
    yield safe_text(answer_sentence(plan), style=f"bold {STYLES[VERDICT_TONES[plan.fits]]}")
    yield NeedBar(plan)
    yield from path_lines(plan)
    largest = largest_words(plan)
    if largest is not None:
        yield safe_text(f"Largest found to fit: {largest}.")
    if plan.time is not None:
        yield safe_text(time_sentence(plan.time))
    yield Text()
    facts = (
        *step_facts(plan.workload, plan.sharding),
        *model_facts(plan.model, seq=plan.workload.seq),
        plan.device.description,
    )
    yield safe_text(" · ".join(facts), style="dim")
    if plan.unmodelled:
        listed = ", ".join(f"{part.what} {format_range(part.low, part.high)}" for part in plan.unmodelled)
        yield safe_text(f"Not modelled: {listed}.", style="dim")


def _peak(plan: FitPlan) -> Iterator[RenderableType]:
    """Say when the peak is, draw the step, and list what fills the device then."""
    yield safe_text(f"Peak of the tensors: {peak_words(plan)}.")
    yield Sparkline(plan.timeline, plan.capacity_bytes)
    alive = plan.ledger.alive(plan.ledger.peak)
    groups = group_tensors(alive, limit=MAX_TENSORS)
    yield tensors_table(groups)
    yield from more(len(alive) - sum(group.count for group in groups))


def path_lines(plan: FitPlan) -> Iterator[RenderableType]:
    """Say which changes make it fit; and others, of equal length or in pairs."""
    path = main_path(plan)
    if path is not None:
        yield safe_text(f"What makes it fit: {path_words(path)}.", style="bold")
    elif plan.path:
        yield safe_text(f"What makes it fit: {' + '.join(plan.path)}.", style="bold")
    elif plan.fits != "yes":
        yield Text("No list of these changes that makes it fit was found.", style="bold")
    others = [other for other in plan.paths if other is not path]
    for other in others[:MAX_PATHS]:
        yield safe_text(f"or: {path_words(other)}.")
    yield from more(len(others) - MAX_PATHS)
