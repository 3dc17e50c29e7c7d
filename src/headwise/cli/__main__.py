"""`python -m headwise.cli`: the same as the command `headwise`."""

import sys

from headwise.cli.main import start

if __name__ == "__main__":
    sys.exit(start())
