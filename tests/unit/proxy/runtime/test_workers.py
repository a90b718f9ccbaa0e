"""Workers: each is a node with its own listeners behind one shared bootstrap port."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane.cli.proxy import _flags
from keylane.config.node import ProxyConfig
from keylane.config.sources import load_config
from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.workers import worker_config
from tests.commands import parse_command
from tests.integration import keylane_process


def load(**flags: object) -> ProxyConfig:
    """A configuration as the command line gives it."""
    return load_config(path=None, environment={}, flags={"bootstrap": "b:9092", **flags}).config


def test_workers_share_the_bootstrap_port_and_nothing_else() -> None:
    """Two workers' listeners never want the same port, but for the one that clients know."""
    config = load(listen="127.0.0.1:19092", control="127.0.0.1:8080", workers=3, node=4)

    workers = [worker_config(config, index) for index in range(3)]

    assert [worker.node for worker in workers] == [4, 5, 6]
    assert {worker.listen for worker in workers} == {"127.0.0.1:19092"}
    assert all(worker.share_port and worker.workers == 1 for worker in workers)
    assert [worker.control for worker in workers] == [f"127.0.0.1:{8080 + i}" for i in range(3)]
    ports = [worker.broker_port(broker) for worker in workers for broker in range(100)]
    assert len(set(ports)) == 300
    assert workers[0].broker_port(2) == config.broker_port(2) == 19095


def test_a_proxy_of_the_tests_draws_all_ports_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that a worker listens on and no test drew is another server's of the same tests."""
    drawn: set[int] = set()

    def draw(*, in_a_row: int = 1) -> int:
        first = 20_000 + 1000 * len(drawn)
        drawn.update(range(first, first + in_a_row))
        return first

    monkeypatch.setattr(keylane_process, "find_free_port", draw)
    proxy = keylane_process.KeylaneProcess("b:9092", [], log_path=tmp_path / "log", workers=3)
    words = proxy.command[proxy.command.index("proxy") :]
    config = load(**_flags(parse_command(words)))

    workers = [worker_config(config, index) for index in range(config.workers)]

    ports = [worker.broker_port(broker) for worker in workers for broker in range(1, 4)]
    ports += [int(str(worker.control).split(":")[1]) for worker in workers]
    assert len(set(ports)) == 3 * (3 + 1)
    assert set(ports) <= drawn


def test_a_worker_reads_its_configuration_back() -> None:
    """What the parent writes is what the worker is."""
    config = load(workers=2, listen="localhost:1", lanes=[{"topic": "orders", "lanes": 4}])
    worker = worker_config(config, 1)

    assert ProxyConfig.model_validate(worker.model_dump(mode="json")) == worker


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        ({"workers": 2, "listen": "127.0.0.1:0"}, "listen: workers share a port"),
        ({"workers": 2, "node": 999}, "workers: node numbers go up to 999"),
        ({"workers": 0}, "workers"),
        ({"node": 1000}, "node"),
    ],
)
def test_what_cannot_work_is_refused(flags: dict[str, object], reported: str) -> None:
    """Before anything is started, naming the key."""
    with pytest.raises(ConfigInvalid, match=reported):
        load(**flags)
