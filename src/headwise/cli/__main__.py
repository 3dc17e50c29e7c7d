"""`python -m headwise.cli`: the same as the command `headwise`."""

import sys

from headwise.cli.main import main

sys.exit(main())
