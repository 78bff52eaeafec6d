"""`python -m resync`: the same as the command `resync`."""

import sys

from resync.cli import main

sys.exit(main())
