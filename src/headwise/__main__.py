"""`python -m headwise`: the command line, where the script is not on the path."""

from headwise.cli.main import start

raise SystemExit(start())
