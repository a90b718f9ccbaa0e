"""The limit of the process's control group, wherever it stands; else a share of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane.proxy.runtime.memory_limit import find_cgroup_limit, find_memory_max

GIB = 1024**3
UNLIMITED_V1 = 9223372036854771712


def write(root: Path, files: dict[str, str]) -> Path:
    """A file system of control groups."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "2147483648\n"}, 2 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": "3221225472\n", "a/memory.max": "2147483648"}, 2 * GIB),
        ("0::/../other\n", {"memory.max": "1073741824"}, GIB),
        ("0::/not/shown\n", {"memory.max": "1073741824"}, GIB),
        (
            "4:memory:/pod/x\n0::/\n",
            {
                "memory/pod/x/memory.limit_in_bytes": str(UNLIMITED_V1),
                "memory/pod/memory.limit_in_bytes": "1073741824",
            },
            GIB,
        ),
        ("7:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "1073741824"}, GIB),
        ("0::/a\n", {"a/memory.max": "max", "memory.max": "max"}, None),
        ("0::/a\n", {"a/memory.max": "nonsense"}, None),
        ("", {}, None),
    ],
)
def test_where_a_limit_stands(
    tmp_path: Path, own: str, files: dict[str, str], expected: int | None
) -> None:
    """Versions 1 and 2, in the group itself or above it, in a namespace or not."""
    (tmp_path / "own").write_text(own)
    cgroups = write(tmp_path / "cgroups", files)

    assert find_cgroup_limit(cgroups, tmp_path / "own") == expected


def test_what_a_process_may_use(tmp_path: Path) -> None:
    """15/16 of a limit; half of the machine where there is none, or one that means nothing."""
    (tmp_path / "own").write_text("0::/\n")
    cgroups = write(tmp_path / "cgroups", {"memory.max": str(GIB)})
    how: dict[str, Path] = {"cgroups": cgroups, "own": tmp_path / "own"}

    assert find_memory_max(**how, machine_bytes=8 * GIB) == GIB * 15 // 16
    assert find_memory_max(**how, machine_bytes=GIB) == GIB // 2
    no_limit: dict[str, Path] = {"cgroups": tmp_path / "none", "own": tmp_path / "none"}
    assert find_memory_max(**no_limit, machine_bytes=8 * GIB) == 4 * GIB


def test_this_machine_has_some() -> None:
    """Whatever it is: an answer that a process can run with, or not."""
    assert find_memory_max() > 0
