"""What heads are worth: taken out, and what the loss says."""
