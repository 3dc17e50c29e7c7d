"""What the heads of a model do: capture, statistics, roles, walkthrough."""
