"""headwise: what attention costs, what makes it cheaper, and what its heads do."""
