"""Results as a page and as text. This part shows what it is given and computes nothing."""
