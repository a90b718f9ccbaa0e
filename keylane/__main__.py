"""`python -m keylane`: the same as the `keylane` command.

In:    argv.  Out: the exit code of `cli.main`.
"""

from __future__ import annotations

import sys

from keylane.cli.main import main

sys.exit(main())
