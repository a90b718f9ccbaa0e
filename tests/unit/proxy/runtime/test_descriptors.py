"""Open files: what has room in a limit, and what is said when there are none."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.descriptors import LIMIT_MIN, Descriptors, budget_of, raise_limit
from keylane.proxy.runtime.stats import ProxyStats


def config(**values: object) -> ProxyConfig:
    return ProxyConfig.model_validate({"bootstrap": "kafka:9092", **values})


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of keylane's: asyncio logs the garbage of other tests, whenever it is collected."""
    records = [record for record in caplog.records if record.name.startswith("keylane")]
    return [record.getMessage() for record in records if record.levelno > logging.DEBUG]


@given(
    limit=st.integers(LIMIT_MIN, 2**20),
    connections=st.integers(1, 20_000),
    control=st.integers(8, 10_000),
)
def test_all_connections_leave_some_files(limit: int, connections: int, control: int) -> None:
    """Two for each client, two for each of the control port, and an eighth at least is left."""
    values = {"connections_max": connections, "control_connections_max": control}

    found = budget_of(limit, config(control="127.0.0.1:0", **values))

    assert 1 <= found.clients <= connections and 8 <= found.control <= control
    assert found.clients == 1 or 2 * (found.clients + found.control) <= limit - min(limit // 8, 128)


def test_a_limit_that_is_too_low_is_reported_with_what_to_do() -> None:
    """Before anything is bound."""
    with pytest.raises(ConfigInvalid, match=r"limit is 100, at least 256 .*ulimit -n"):
        budget_of(100, config())


def test_a_bound_that_has_no_room_is_lowered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With both numbers; one that has room is not talked of."""
    assert budget_of(1024, config(connections_max=400)).clients == 400
    assert not logged(caplog)

    assert budget_of(1024, config(connections_max=449)).clients == 448
    assert "from=449 to=448 open_files=1024" in caplog.text


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """A separate process has its own limits."""
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, 900));"
        "from keylane.proxy.runtime.descriptors import raise_limit; print(raise_limit());"
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.split("\n")[:2] == ["900", "(900, 900)"]
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def test_failures_to_accept_are_counted_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio reports each of them, hundreds in a second; other errors go where they went."""
    stats, now_s = ProxyStats(), [0.0]
    loop = asyncio.get_running_loop()
    others: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _loop, context: others.append(context))
    Descriptors(stats, lambda: now_s[0]).watch(loop)
    full = {"exception": OSError(errno.EMFILE, "Too many open files"), "socket": object()}

    with caplog.at_level(logging.ERROR, "keylane.server"):
        for _ in range(5):
            loop.call_exception_handler(full)
        now_s[0] = 10.0
        loop.call_exception_handler(full)
        loop.call_exception_handler({"message": "another", "exception": OSError(errno.EPIPE, "")})

    assert stats.accepts_failed == 6
    counts = [line.partition("count=")[2].partition(" ")[0] for line in logged(caplog)]
    assert counts == ["1", "5"]
    assert [context["message"] for context in others] == ["another"]


async def test_a_reset_under_a_write_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    """uvloop's sslproto calls the handler so; any other RuntimeError is a mistake as before."""
    loop = asyncio.get_running_loop()
    others: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _loop, context: others.append(context))
    Descriptors(ProxyStats(), lambda: 0.0).watch(loop)
    closed = "unable to perform operation on <TCPTransport closed=True>; the handler is closed"

    for reason in (closed, "another"):
        loop.call_exception_handler(
            {
                "message": "Fatal error on SSL protocol",
                "exception": RuntimeError(reason),
                "protocol": object(),
            }
        )

    assert [str(context["exception"]) for context in others] == ["another"]
    assert not logged(caplog)


def test_uvloop_does_not_report_it_so_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can be opened is closed again; one that cannot is counted."""
    stats = ProxyStats()
    files = Descriptors(stats, lambda: 0.0)
    files.probe()
    assert stats.accepts_failed == 0

    def refuse(*_args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.open", refuse)
    files.probe()
    assert stats.accepts_failed == 1
