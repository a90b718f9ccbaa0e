"""A group whose members are stock clients of other languages."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.harness import Group, reported_at_s


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that the coordinator has confirmed."""

    member: str
    lane: int
    offset: int
    at_s: float


class ClientGroup(Group):
    """Members of one client in one group."""

    def __init__(
        self, command: Sequence[str], bootstrap: str, topic: str, group: str, **options: Any
    ) -> None:
        """command: of one member, without its options."""
        super().__init__(bootstrap, topic, group, **options)
        self.command = command
        self.commits: list[Commit] = []
        self.assignments: dict[tuple[str, int], list[float]] = {}
        """When a member was given a lane."""

    def _start_member(
        self, library: str, name: str, options: dict[str, Any]
    ) -> subprocess.Popen[str]:
        command = [*self.command, "--bootstrap", self.bootstrap, "--group", self.group]
        command += ["--topic", self.topic, "--name", name]
        for key, value in options.items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        assert self.log_folder is not None, "what members say of errors is kept"
        with open(Path(self.log_folder) / f"{name}.log", "ab") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def _take(self, name: str, reported: dict[str, Any]) -> None:
        if reported["event"] == "committed":
            at_s = reported_at_s(reported)
            self.commits += (
                Commit(name, int(lane), offset, at_s)
                for lane, offset in reported["offsets"].items()
            )
        super()._take(name, reported)

    def _note_lanes(self, name: str, event: str, reported: dict[str, Any]) -> None:
        if event == "assigned":
            for lane in reported["lanes"]:
                self.assignments.setdefault((name, lane), []).append(reported_at_s(reported))
            if reported["whole"]:
                self.seen.lanes[name].clear()
        super()._note_lanes(name, event, reported)
