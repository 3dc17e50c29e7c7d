"""`python -m headwise`: the command line, where the script is not on the path."""

from headwise.cli.main import start

if __name__ == "__main__":
    raise SystemExit(start())
