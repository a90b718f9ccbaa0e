"""What an import of the client loads: a program that imports it starts at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "aiohttp",
    "aiokafka",
    "kio",
    "llvmlite",
    "numba",
    "numpy",
    "prometheus_client",
    "pydantic",
)


@pytest.mark.parametrize(
    "imports",
    [
        "import keylane; keylane.assign",
        "import keylane.client",
        "from keylane.client import Consumer, Workers, headers",
        "from keylane.client.workers import *",
        "from keylane import assign; from keylane.client import errors",
    ],
)
def test_heavy_modules_come_when_they_are_used(imports: str) -> None:
    """In a fresh interpreter none of them is there: 0.1 s, where NumPy alone takes 0.15 s."""
    look = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules])"

    found = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{look}"], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == []


def test_assign_is_the_function_however_it_is_imported() -> None:
    """Its module has the same name, and does not come in its place."""
    calls = (
        "import keylane.assign, keylane.cli.main\n"
        "from keylane import assign\n"
        "from keylane.assign import assign as again, name_members\n"
        "assert assign is again is keylane.assign\n"
        "print(len(keylane.assign({'t': 2}, 2)))"
    )

    found = subprocess.run(
        [sys.executable, "-c", calls], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == ["2"]
