"""Tokens that belong together, and which heads follow them."""
