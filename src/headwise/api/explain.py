"""`headwise.explain`: one small attention, every number shown."""

from headwise.inspection.results import Walkthrough
from headwise.inspection.walkthrough import explain_example


def explain() -> Walkthrough:
    """Walk through the two-token example, step by step: projections, scores, scale, softmax, weighted sum."""
    return explain_example()
