"""Texts as models read them: in windows, in pairs, or continued."""
