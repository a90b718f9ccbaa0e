"""`keylane proxy --workers N`: N nodes on one machine, each a process, under one parent.

All share the bootstrap port, so that clients need one address; each has its own listeners for the
brokers. A worker that ends is started again; the others take over its groups meanwhile. That
is also how workers are restarted one after another: SIGTERM to each, the parent does the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Final

from keylane.config.node import ProxyConfig, split_address
from keylane.config.origins import ORIGINS_VARIABLE, LoadedConfig
from keylane.config.sources import ENVIRONMENT_PREFIX
from keylane.proxy.runtime.memory_limit import find_memory_max
from keylane.proxy.runtime.memory_plan import share_of_worker
from keylane.tasks import spawn

log = logging.getLogger("keylane.workers")

READY: Final = b"keylane ready "
BAD_CONFIG: Final = 2
"""Exit code of a worker that would end again however often it is started."""
RESTART_PAUSE_S: Final = 0.5
RESTART_PAUSE_S_MAX: Final = 30.0
SOUND_S: Final = 60.0
"""A worker that ran for this time has started well: its next restart counts as the first."""
UNTIL_EOF: Final = "--until-eof"


def worker_config(config: ProxyConfig, index: int) -> ProxyConfig:
    """Return the configuration of one worker: its number and its ports."""
    _, port = split_address(config.listen)
    step = index * config.worker_port_step
    first = config.broker_ports_from if config.broker_ports_from is not None else port + 1
    control = config.control
    if control is not None:
        host, number = control.rsplit(":", 1)
        control = f"{host}:{int(number) + index if int(number) else 0}"
    return config.model_copy(
        update={
            "workers": 1,
            "node": (config.node or 0) + index,
            "broker_ports_from": first + step,
            "share_port": True,
            "control": control,
            "memory_max": share_of_worker(config.memory_max or find_memory_max(), config.workers),
        }
    )


def run_workers(loaded: LoadedConfig) -> int:
    """Run all workers until SIGINT or SIGTERM. Exit code 0 after a clean stop, 2 or 1 else."""
    with tempfile.TemporaryDirectory(prefix="keylane-") as folder:
        return asyncio.run(_Parent(loaded, Path(folder)).run())


class _Parent:
    """Starts the workers, starts those again that end, and ends all at a signal."""

    def __init__(self, loaded: LoadedConfig, folder: Path) -> None:
        self._loaded, self._config, self._folder = loaded, loaded.config, folder
        self._stopping = asyncio.Event()
        self._processes: dict[int, Process] = {}
        self._ready: set[int] = set()
        self._code = 0

    async def run(self) -> int:
        """Run until a signal, or until a worker ends for a bad configuration."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        tasks = [
            spawn(self._keep(index), f"worker {index}") for index in range(self._config.workers)
        ]
        await self._stopping.wait()
        self._pass_on(signal.SIGTERM)
        await asyncio.gather(*tasks)
        return self._code

    async def _keep(self, index: int) -> None:
        """Run a worker, again and again."""
        clock, pause_s = asyncio.get_running_loop().time, RESTART_PAUSE_S
        while not self._stopping.is_set():
            started_s = clock()
            code = await self._run_once(index)
            if self._stopping.is_set():
                return
            if code == BAD_CONFIG and index not in self._ready:
                self._code = code
                self._stopping.set()
                return
            if clock() - started_s > SOUND_S:
                pause_s = RESTART_PAUSE_S
            log.warning("worker ended worker=%d code=%d restart_in_s=%g", index, code, pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, RESTART_PAUSE_S_MAX)

    async def _run_once(self, index: int) -> int:
        """Run a worker to its end; its exit code, negative for a signal."""
        path = self._folder / f"worker-{index}.yaml"
        config = worker_config(self._config, index)
        values = config.model_dump(mode="json", exclude_unset=True)
        path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "keylane", "proxy", "--config", str(path), UNTIL_EOF),
            stdin=PIPE,  # it ends when this process does, however that ends
            stdout=PIPE,
            env=_environment() | {ORIGINS_VARIABLE: self._loaded.text_for_worker(config)},
        )
        self._processes[index] = process
        log.info("worker started worker=%d pid=%d", index, process.pid)
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None, "asked for with PIPE"
        async for line in process.stdout:
            if line.startswith(READY):
                self._note_ready(index)
        code = await process.wait()
        del self._processes[index]
        return code

    def _note_ready(self, index: int) -> None:
        log.info("worker ready worker=%d", index)
        was_complete = len(self._ready) == self._config.workers
        self._ready.add(index)
        if was_complete or len(self._ready) < self._config.workers:
            return
        control = f" control={self._config.control}" if self._config.control else ""
        _, port = split_address(self._config.listen)
        bootstrap = f"{self._config.advertised_host}:{port}"
        print(
            f"keylane ready bootstrap={bootstrap}{control} workers={self._config.workers}",
            flush=True,
        )

    def _pass_on(self, number: signal.Signals) -> None:
        for process in list(self._processes.values()):
            try:
                process.send_signal(number)
            except ProcessLookupError:
                log.debug("worker is gone already pid=%d", process.pid)


def _environment() -> dict[str, str]:
    """Return a worker's environment: without the configuration, which is in its file."""
    keys = {ENVIRONMENT_PREFIX + key.upper() for key in ProxyConfig.model_fields}
    return {name: value for name, value in os.environ.items() if name not in keys}
