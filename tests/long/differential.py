"""Every API and version, direct and through keylane, with as many questions as there is time for.

`python -m tests.long.differential --each 100 --seed 7`: about 25,000 pairs in ten minutes. The
short form is `tests/integration/test_differential.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.integration.differential import compare
from tests.integration.twins import ask_all, both_sides


def main() -> int:
    """Ask, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--each", type=int, default=100, help="questions per API and version")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="keylane-differential-") as folder,
        both_sides(Path(folder)) as (direct, through),
    ):
        questions = ask_all(through, asked.each, asked.seed)
        found = compare(questions, direct, through)
    for one in found:
        print(one)
    print(f"{len(questions)} questions, {len(found)} differences", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
