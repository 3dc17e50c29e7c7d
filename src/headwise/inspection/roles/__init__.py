"""Roles of heads, held against nulls."""
