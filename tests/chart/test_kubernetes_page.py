"""docs/kubernetes.md names values that the chart takes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.programs import find_or_skip
from tools.go_tools import HELM

pytestmark = pytest.mark.timeout(1000)  # Helm may have to be built first
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_the_command_of_the_page_renders() -> None:
    """`helm template` of the page gives a StatefulSet with the lanes that it names."""
    helm = find_or_skip(HELM)
    (command,) = re.findall(r"```sh\n(helm template .*?)```", PAGE, re.DOTALL)

    words = shlex.split(command.replace("\\\n", " "))
    rendered = subprocess.run(
        [str(helm), *words[1:], "--kube-version", "1.31.0"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert rendered.returncode == 0, rendered.stderr
    assert "kind: StatefulSet" in rendered.stdout
    assert "lanes: 16" in rendered.stdout
