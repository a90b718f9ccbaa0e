"""Memory that this process may use: of its control group, or of the machine.

Source: Linux, "Control Group v2" (memory.max) and "Memory Resource Controller"
(memory.limit_in_bytes); cgroups(7) on /proc/PID/cgroup. A group is bounded by those above it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from keylane.config.node import ProxyConfig
from keylane.proxy.runtime.memory_plan import MemoryPlan, plan_memory

log = logging.getLogger("keylane.memory")

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
CGROUP_SHARE: Final = (15, 16)
"""Of a control group's limit: the kernel counts buffers of sockets and files in /tmp as well."""
MACHINE_SHARE: Final = (1, 2)
"""Of a machine's memory, which others use as well."""


def fit_memory(config: ProxyConfig) -> tuple[ProxyConfig, MemoryPlan]:
    """The configuration with every bound that follows from `memory_max`; logs them.

    Raises: ConfigInvalid.
    """
    memory_max = config.memory_max or find_memory_max()
    plan = plan_memory(config, memory_max, processors=os.cpu_count() or 1)
    log.info("memory is shared out %s", plan.fields())
    return plan.applied_to(config), plan


def find_memory_max(
    *, cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS, machine_bytes: int | None = None
) -> int:
    """Return the bytes that the process may use where `memory_max` is left out."""
    machine_bytes = machine_bytes or _machine_bytes()
    limit = find_cgroup_limit(cgroups, own)
    if limit is None or limit >= machine_bytes:
        return machine_bytes * MACHINE_SHARE[0] // MACHINE_SHARE[1]
    return limit * CGROUP_SHARE[0] // CGROUP_SHARE[1]


def find_cgroup_limit(cgroups: Path, own: Path) -> int | None:
    """Return the lowest limit of the process's group and of all above it; None: none is known."""
    limits = [limit for path in _limit_files(cgroups, own) if (limit := _read_limit(path))]
    return min(limits, default=None)


def _limit_files(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield files of version 2 (hierarchy 0, without controllers) and 1 (the one of `memory`)."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    paths = {"": "/", "memory": "/"}  # where this is a container, its group may be the root
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            if name in paths:
                paths[name] = path
    for name, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        # `..` stands in a path that a namespace does not show.
        steps = [step for step in PurePosixPath(paths[name]).parts if step not in ("/", "..")]
        for depth in range(len(steps), -1, -1):
            yield cgroups.joinpath(name, *steps[:depth], file)


def _read_limit(path: Path) -> int | None:
    """None for "max", and for a file that is not there or cannot be read."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
