"""Exact attention that visits only what a mask allows: memory linear in the lengths, forward and backward."""
