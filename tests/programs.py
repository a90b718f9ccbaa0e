"""Programs of other projects that tests run, where the machine has them or can build them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.go_tools import GoTool, GoToolMissing, find_tool


def find_or_skip(tool: GoTool) -> Path:
    """Return a program's path; a machine that can neither find nor build it skips the test."""
    try:
        return find_tool(tool)
    except GoToolMissing as error:
        pytest.skip(f"no {tool.name}: {error}")
