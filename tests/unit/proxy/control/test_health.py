"""/livez and /readyz over the life of a node."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from keylane.journal.set_aside import SetAside
from keylane.offsets.values import Damaged
from keylane.proxy.control.health import Health
from keylane.proxy.startup.control_base import Upkeep
from keylane.tasks import Watched


async def ask(health: Health) -> list[tuple[int, str]]:
    """What /livez and /readyz answer now."""
    app = web.Application()
    app.add_routes([web.get("/livez", health.livez), web.get("/readyz", health.readyz)])
    async with TestClient(TestServer(app)) as client:
        answers = [await client.get(path) for path in ("/livez", "/readyz")]
        return [(answer.status, await answer.text()) for answer in answers]


async def test_a_node_that_starts_is_alive_and_not_ready() -> None:
    """503 says `starting`."""
    health = Health()

    assert await ask(health) == [(200, "ok\n"), (503, "starting\n")]


async def test_a_node_that_serves_is_ready() -> None:
    """200 once all listeners serve."""
    health = Health()

    health.serves()

    assert await ask(health) == [(200, "ok\n"), (200, "ok\n")]


async def test_a_node_that_stops_is_alive_and_not_ready() -> None:
    """503 says `stopping`; a restart by the liveness probe would cut the drain short."""
    health = Health()
    health.serves()

    health.stops()

    assert await ask(health) == [(200, "ok\n"), (503, "stopping\n")]


async def test_a_node_that_serves_all_but_groups_is_ready_and_says_so() -> None:
    """200, since clients are answered in Kafka's own words; the second line is for the operator."""
    health = Health()
    health.serves()

    health.missing = "groups on lanes: no topic"

    assert await ask(health) == [(200, "ok\n"), (200, "ok\nmissing: groups on lanes: no topic\n")]


async def test_what_somebody_should_look_at_changes_no_status() -> None:
    """Records that were set aside, and tasks that rest: lines behind the state."""
    upkeep = Upkeep(SetAside(), Watched())
    health = Health(notes=[upkeep.lines])
    health.serves()
    assert await ask(health) == [(200, "ok\n"), (200, "ok\n")]

    upkeep.set_aside.note("topic", Damaged(3, 17, "no JSON"))
    upkeep.watched.resting.add("sweep")

    lines = ["restarting: sweep, after an error"]
    lines.append("set aside: 1 records of topic, at partition 3 offset 17")
    assert (await ask(health))[1] == (200, "".join(f"{line}\n" for line in ["ok", *lines]))
