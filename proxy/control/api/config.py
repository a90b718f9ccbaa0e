"""The configuration over HTTP: each key with its value in force, its default and its place.

Source: docs/control-api.md.
"""

from __future__ import annotations

import os
from dataclasses import asdict

from aiohttp import web

from keylane.config.explain import ConfigReport, explain
from keylane.config.node import ProxyConfig
from keylane.config.origins import LoadedConfig
from keylane.config.security import PASSWORD_VARIABLE
from keylane.proxy.control.api.operations import ControlOperation
from keylane.proxy.topics.switches import SwitchBoard


class ConfigHandlers:
    """Handlers of `/config`."""

    def __init__(self, loaded: LoadedConfig, in_force: ProxyConfig, switches: SwitchBoard) -> None:
        """`in_force` has the bounds that follow from `memory_max`."""
        self._loaded, self._in_force, self._switches = loaded, in_force, switches

    def operations(self) -> list[ControlOperation]:
        """Return the operations, which change nothing."""
        return [
            ControlOperation(
                method="GET", path="/config", handler=self._get, answer=ConfigReport,
                summary="Every key of the configuration: value in force, default, place",
            ),
        ]  # fmt: skip

    async def _get(self, _request: web.Request) -> web.Response:
        report = explain(
            self._loaded,
            in_force=self._in_force,
            switched=self._switched(),
            has_password=PASSWORD_VARIABLE in os.environ,
        )
        return web.json_response(asdict(report))

    def _switched(self) -> dict[str, bool]:
        """Return what `PUT /switches` has set in the place of a key of the configuration.

        Switches of single topics and clients stand beside the lists of the configuration, and are
        at `/switches`.
        """
        wanted = self._switches.current.accept_individual_commit
        return {} if wanted is None else {"accept_individual_commit": wanted}
