"""`headwise.explain`: one small attention, every number shown."""

import os

from headwise.inspection.results import Walkthrough
from headwise.inspection.walkthrough.variants import explain_example


def explain(*, example: str = "two-tokens", out: str | os.PathLike[str] | None = None) -> Walkthrough:
    """Walk through one small attention, step by step: projections, scores, scale, mask, softmax, weighted sum, heads.

    Args:
        example: "two-tokens" (one head of two dimensions) or "two-heads" (three tokens, causal, an output projection).
        out: where to write it as a page; None = no page.

    Raises:
        ConfigError: there is no such example.
        OutputError: the page cannot be written.
    """
    if out is not None:
        from headwise.report.files import check_page_place

        check_page_place(out)
    walkthrough = explain_example(example)
    if out is not None:
        from headwise.report.explain_page import write_explanation

        write_explanation(walkthrough, example, out)
    return walkthrough
