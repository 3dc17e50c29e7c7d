"""Images as models read them: in patches."""
