"""Controlled experiments: tasks, training, and comparisons with intervals."""
