"""`python -m headwise.cli`: the same as the command `headwise`."""

import sys

from headwise.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
