"""Reading the attention of any model while it stays on its own path."""
