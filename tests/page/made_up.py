"""A live page without a Kafka: made-up states of any size, served in the proxy's way."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import count
from typing import Any

from aiohttp import web

from keylane.keyrange.space import split_even
from keylane.proxy.control.live_feed import HEADERS, PAGES, TYPES, _read
from tests.page.made_up_shares import made_up_shares

Topic = tuple[str, int, int]
"""Name, partitions, lanes."""


def made_up_layout(topics: Sequence[Topic]) -> list[dict[str, Any]]:
    """Return a layout with equal key ranges."""
    return [
        {
            "name": name,
            "partitions": partitions,
            "lanes": lanes,
            "borders": [[str(key_range.lo) for key_range in split_even(lanes)[1:]]],
        }
        for name, partitions, lanes in topics
    ]


def made_up_state(topics: Sequence[Topic], members: int, *, seed: int) -> dict[str, Any]:
    """Loads of a power law; lanes dealt out in blocks, as a balanced plan looks."""
    chance = random.Random(seed)
    loads = {
        name: [round(chance.paretovariate(1.1) * 2_000) for _ in range(partitions * lanes)]
        for name, partitions, lanes in topics
    }
    owner = {
        name: [
            (index // partitions * members // lanes + index % partitions) % members
            for index in range(partitions * lanes)
        ]
        for name, partitions, lanes in topics
    }
    held = [sum(row.count(place) for row in owner.values()) for place in range(members)]
    return {
        "node": {
            "version": "1.2.3",
            "sessions": 2 * members + seed,
            "readers": len(topics),
            "cache_bytes": 12_300_000 + 1000 * seed,
            "cache_bytes_max": 209_715_200,
            "filtering_bytes": 1_000_000,
            "filtering_bytes_max": 104_857_600,
            "records_per_s": 41_000.0 + seed,
            "upstream_bytes_per_s": 21_000_000.0,
            "lane_bytes_per_s": 44_000_000.0,
        },
        "topics": [{"name": name, "bytes_per_s": loads[name]} for name, *_ in topics],
        "groups": [
            {
                "name": "billing",
                "state": "Stable",
                "assignor": "cooperative-sticky",
                "members": [
                    {
                        "id": f"m-{place}",
                        "label": f"billing-{place}",
                        "host": f"/10.0.0.{place + 1}",
                        "lanes": held[place],
                        "bytes_per_s": round(chance.uniform(2e6, 4e6)),
                        "lag": chance.randrange(5_000),
                        "gained": chance.choice([0, 0, 3]),
                        "lost": chance.choice([0, 0, 1]),
                    }
                    for place in range(members)
                ],
                "topics": [
                    {
                        "name": name,
                        "owner": owner[name],
                        "lag": [chance.randrange(200) for _ in owner[name]],
                        "lag_is_exact": [chance.randrange(2) for _ in owner[name]],
                    }
                    for name, *_ in topics
                ],
            }
        ],
        "groups_left_out": 0,
    }


def made_up_app(
    topics: Sequence[Topic], members: int, *, step: Any, has_shares: bool = False
) -> web.Application:
    """The page; `step()` is awaited before each further state."""

    async def page(request: web.Request) -> web.Response:
        name = request.match_info.get("name", PAGES[0])
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(body=_read(name), content_type=kind, charset="utf-8", headers=HEADERS)

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        layout = json.dumps(made_up_layout(topics))
        await response.write(f"event: layout\ndata: {layout}\n\n".encode())
        for seed in count(1):
            made_up = made_up_state(topics, members, seed=seed)
            made_up |= {"shares": made_up_shares(seed=seed) if has_shares else []}
            state = json.dumps(made_up | {"shares_left_out": 2})
            await response.write(f"event: state\ndata: {state}\n\n".encode())
            await step()
        return response

    app = web.Application()
    app.add_routes(
        [web.get("/", page), web.get("/page/events", events), web.get("/page/{name}", page)]
    )
    return app
