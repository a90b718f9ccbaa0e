"""`python -m keylane`: the same as the `keylane` command."""

from __future__ import annotations

import sys

from keylane.cli.main import main

sys.exit(main())
