"""Weights in and out, and surgery on heads, each proven by equal outputs."""
