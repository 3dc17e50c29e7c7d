"""The one place that touches other libraries' hooks."""
