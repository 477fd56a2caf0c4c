"""`python -m collective_ops`: the command `collective-ops`, where it is not on the path."""

import sys

from collective_ops.cli import main

sys.exit(main())
