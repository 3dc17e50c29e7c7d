"""Heads watched while a model trains."""
