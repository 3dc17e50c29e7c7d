"""One attention, step by step."""
