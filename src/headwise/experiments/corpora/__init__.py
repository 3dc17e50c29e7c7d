"""Texts to learn from: where each comes from, how it is fetched once, cleaned and split."""
