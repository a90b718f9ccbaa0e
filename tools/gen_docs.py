"""Write the generated pages of docs/: command line, configuration, metrics, protocol, API."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import pkgutil
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from keylane.cache.slice_cache import SliceCache
from keylane.config.memory import MemoryConfig
from keylane.config.node import GroupRule, LaneRule, ProxyConfig
from keylane.config.security import SecurityConfig
from keylane.config.share_rules import ShareRule
from keylane.config.source_names import SAME
from keylane.config.sources import ENVIRONMENT_PREFIX
from keylane.journal.set_aside import SetAside
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy import apis
from keylane.proxy.apis import ROUTES
from keylane.proxy.apis.shared.treatments import NOT_SERVED, TREATMENTS
from keylane.proxy.control.gauges import GroupGauges, NodeGauges
from keylane.proxy.control.metrics import build_info
from keylane.proxy.control.shares.gauges import ShareGauges
from keylane.proxy.control.shares.windows import SharedWindow
from keylane.proxy.control.watch.gauges import SampledGauges
from keylane.proxy.control.watch.summary import GroupSummary
from keylane.proxy.runtime.stats import ProxyStats, Sample
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.tallies import ShareTallies
from keylane.proxy.startup.control_base import Upkeep
from keylane.share.dispatcher import Dispatcher
from keylane.share.summary import summarise
from keylane.tasks import Watched
from keylane.wire.share import Acquired
from tools.gen_api import api
from tools.gen_cli import cli_page
from tools.gen_python import python_page, workers_metrics

LOOKED_AT: Final = {15: "relayed, added names taken out", 36: "relayed, noted"}
"""Treatment of answers, by API key, where no address is replaced."""
ROOT: Final = Path(__file__).resolve().parent.parent
BEHAVIOUR: Final = re.compile(r"^Behaviour: (.*?)\nNot done: (.*?)\n\n", re.DOTALL | re.MULTILINE)
TABLE_HEAD: Final = "| key | default | meaning |\n|---|---|---|\n"
CONFIGURATION_HEAD: Final = f"""# Configuration

Each key can be set in three places; a later one overrides an earlier one:

1. a YAML file (`keylane proxy --config FILE`);
2. an environment variable, `{ENVIRONMENT_PREFIX}` and the key in capitals, with lists of rules as
   YAML;
3. a flag: `--lanes`, `--listen` and so on, `--set KEY=VALUE` for keys without one.

An unknown key or a value out of its bounds ends the start with a line that names its place and the
key: `keylane.yaml:3: lanez: no such key; did you mean lanes?`.
`GET /config` on the control port lists every key with its value in force and the place that set it
([control-api.md](control-api.md#configuration)).
Names that Kafka's improvement proposals give to a key of a node are taken in its place, in the
file and with `--set`: {", ".join(f"`{name}`" for name in SAME)}.
A change needs a restart, except for [files of secrets and certificates](#security).

```yaml
bootstrap: kafka-1:9092,kafka-2:9092
listen: 0.0.0.0:19092
advertise: keylane.example.com
lanes:
  - {{topic: orders, lanes: 16}}
  - {{topic: "shop-*", lanes: 4, reserve_message_value: false}}
groups:
  - {{group: "legacy-*", assignor: client}}
```

Rules have a short form: `lanes: {{orders: 16, audit: audit.json}}`,
`groups: {{"legacy-*": client}}`, `share_groups: {{billing: key}}`. `keylane config` shows each key
with its value and its place, `keylane check` whether a node could start with them
([cli.md](cli.md#keylane-check)).

`reserve_message_value` keeps whole records in the cache until their lane has fetched them, so a
partition is read and decompressed once. That is the default, since a second read costs more than
memory, which is bounded in any case ([decision 007](decisions/007-whole-records-are-kept.md)).

`compression` saves network traffic: without it lanes are sent uncompressed, also if the topic is
compressed ([decision 009](decisions/009-lanes-are-sent-uncompressed.md)).

The log goes to stderr; `{ENVIRONMENT_PREFIX}LOG` sets its level (`info` when left out).

"""
MEMORY_HEAD: Final = """## Memory

`memory_max` bounds the process, and the other bounds follow from it. A table is in
[operations.md](operations.md#memory), the method in
[decision 035](decisions/035-one-bound-of-memory.md). `buffered_bytes_max`, `connections_max` and
`filter_threads` follow from it too.

"""
SECURITY_HEAD: Final = """## Security

[security.md](security.md) explains these keys and has examples.
A password or token is in a file or a variable, never in the configuration itself.
Bounds of connections and buffers are here as well.

"""
METRICS_HEAD: Final = """# Metrics

`GET /metrics` on the control port (`control` in [configuration.md](configuration.md)) answers
Prometheus text. With `control_token_file` it needs a token; that of `control_read_token_file` is
enough. `GET /livez` and `GET /readyz` need none ([control-api.md](control-api.md#probes)).

The number of series is bounded: there is none per lane, per member or per client. Series with the
labels `group` and `topic` exist for the 100 pairs that are furthest behind. `GET /groups/NAME`
(`keylane describe`) shows lanes and members one by one. A counter with the label `group` or
`broker` has at most 100 series, and one more for all others. A scrape with 10,000 lanes takes some
milliseconds.

`keylane_share_*` are there if a rule of `share_groups` is. Each node has those of the partitions
that it serves: add them up over nodes, or take the largest. Of `oldest_seconds` and
`window_used_ratio` it is the largest of the topic's partitions.

On Linux there are also the usual metrics of a process, from Prometheus' client:
`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds`,
`process_max_fds`, `process_start_time_seconds`, `process_virtual_memory_bytes`.

A Grafana dashboard is in `helm/keylane/dashboards/keylane.json`, alert rules are in
`helm/keylane/rules/keylane.yaml`. [operations.md](operations.md#what-to-do-when-an-alert-fires)
describes what to do when an alert fires.

| name | kind | meaning |
|---|---|---|
"""
WORKERS_HEAD: Final = """
## Workers of the Python consumer

`Workers(metrics=registry)` puts these into a registry of prometheus-client in the application's own
process ([python.md](python.md#what-can-i-see)); keylane's control port does not have them. The
label is the `name` of the workers.

| name | kind | meaning |
|---|---|---|
"""
PROTOCOL_HEAD: Final = """# Protocol

The Kafka APIs that keylane supports, and what they do on lanes.
*Served* means that keylane decodes a request if it names lanes or addresses. *Relayed* means that
the request passes as bytes.
A key that is not in the table is hidden in ApiVersions and refused.

| key | API | versions | how |
|---|---|---|---|
"""

TREATMENTS_HEAD: Final = """## Topics and partitions, API by API

A *lane topic* is one that the client sees as lanes: under its own name by a rule of `lanes`, or
under a lane name such as `orders.lanes-16`.
A lane's number never reaches a broker as a partition's number: it is translated, or refused. The
broker judges rights to the topic, by the client's own principal.
An API that is not in this table names neither topics nor partitions. *As direct* means: the same as
without keylane.

| API | plain topics | lane topics |
|---|---|---|
"""
NOT_SERVED_HEAD: Final = """## Not served

Hidden in ApiVersions; a request closes the connection.

| key | API | why |
|---|---|---|
"""


def configuration() -> str:
    """The tables of all keys."""
    parts = [
        CONFIGURATION_HEAD + _keys(ProxyConfig, without=MemoryConfig),
        MEMORY_HEAD + _keys(MemoryConfig, without=SecurityConfig),
        SECURITY_HEAD + _keys(SecurityConfig),
        "## A rule of `lanes`\n\n" + _keys(LaneRule),
        "## A rule of `groups`\n\n" + _keys(GroupRule),
        "## A rule of `share_groups`\n\n" + _keys(ShareRule),
    ]
    return "\n".join(parts)


def _keys(model: type[BaseModel], *, without: type[BaseModel] | None = None) -> str:
    rows = []
    for key, entry in model.model_fields.items():
        if without is not None and key in without.model_fields:
            continue
        meaning = entry.description or ""
        rows.append(f"| `{key}` | {_default(entry.default)} | {meaning} |")
    return TABLE_HEAD + "\n".join(rows) + "\n"


def _default(value: Any) -> str:
    """A default as YAML would have it."""
    if value is PydanticUndefined:
        return "required"
    if value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def metrics() -> str:
    """The table of all metrics."""
    rows = [
        f"| `{sample.name}{_labels(sample.labels)}` | {sample.kind} | {sample.help} |"
        for sample in samples_of_all()
    ]
    workers = [f"| `{name}` | {kind} | {text} |" for name, kind, text in workers_metrics()]
    own = METRICS_HEAD + "\n".join(dict.fromkeys(rows)) + "\n"
    return own + WORKERS_HEAD + "\n".join(workers) + "\n"


def samples_of_all() -> Iterator[Sample]:
    """A sample of each metric, with its labels; some have several."""
    stats = ProxyStats()
    stats.requests["Fetch"], stats.commits_back["group"] = 1, 1
    stats.commits_left_over["group"] = stats.control_connections_closed["idle"] = 1
    stats.own_names_refused["Produce"] = stats.upstream_timeouts["1"] = 1
    stats.lane_moves["load"] = stats.share_acknowledgements["accept"] = 1
    yield from stats.samples()
    upkeep = Upkeep(SetAside(), Watched())
    upkeep.watched.restarts["sweep"] = 1
    key = StateKey("group", uuid.UUID(int=1), 0)
    state = OffsetState(committed=0, topic_name="topic")
    gauges = GroupGauges(lambda: [(key, state)], lambda: {(key.topic_id, 0): 1}, lambda: 1)
    nodes = NodeGauges(0, lambda: None, lambda _partition: False, dict)
    seen = GroupSummary(
        group="group", kind=None, protocol=None, state=None, lag_s=1, stuck_members=1, as_of_ms=0
    )
    sampled = SampledGauges(lambda: {seen.group: seen}, lambda: 0)
    shares = share_gauges()
    for gauge in (gauges, sampled, nodes, shares, upkeep):
        yield from gauge.samples()
    yield build_info()


def share_gauges() -> ShareGauges:
    """Return the gauges of one ordered share group with one window."""
    place = SharedPlace("group", "topic", uuid.UUID(int=1), 0)
    window = SharedWindow(place, 1, 0, 1, summarise(Dispatcher(), 0.0, None))
    tallies, held_bytes = ShareTallies(), HeldBytes(SliceCache(bytes_max=1))
    tallies.note(place, [Acquired(0, 0, 1)])
    held_bytes.by_group["group"] = 1

    async def windows() -> list[SharedWindow]:
        return [window]

    gauges = ShareGauges(windows, (), tallies, held_bytes)
    asyncio.run(gauges.look())
    return gauges


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(key for key, _ in labels) + "}" if labels else ""


def protocol() -> str:
    """The table of all APIs, and what is done to those that are served."""
    rows = []
    for key, route in sorted(ROUTES.items()):
        is_served = route.handler is not None or route.look is not None
        how = "served" if is_served else "relayed"
        if not is_served and route.patch is not None:
            how = LOOKED_AT.get(key, "relayed, addresses replaced")
        versions = f"{route.version_min}-{route.version_max}"
        rows.append(f"| {key} | {route.name} | {versions} | {how} |")
    treated = [
        f"| {ROUTES[key].name} | {each.plain} | {each.lanes} |"
        for key, each in sorted(TREATMENTS.items())
    ]
    hidden = [f"| {key} | {key.schema_name} | {why} |" for key, why in sorted(NOT_SERVED.items())]
    parts = [
        PROTOCOL_HEAD + "\n".join(rows) + "\n",
        NOT_SERVED_HEAD + "\n".join(hidden) + "\n",
        TREATMENTS_HEAD + "\n".join(treated) + "\n",
        *_behaviours(),
    ]
    return "\n".join(parts)


def _behaviours() -> list[str]:
    """Return a section for each module of `apis` whose docstring describes its behaviour."""
    sections = []
    for module in pkgutil.walk_packages(apis.__path__, f"{apis.__name__}."):
        doc = importlib.import_module(module.name).__doc__ or ""
        found = BEHAVIOUR.search(doc)
        if found is None:
            continue
        title, _, reported = doc.partition("\n")[0].rstrip(".").partition(": ")
        reported = f"{_capital(reported)}.\n\n" if reported else ""
        section = f"## {title}\n\n{reported}{_capital(found[1])}\n"
        if not found[2].startswith("nothing"):
            section += f"\nNot done: {found[2]}\n"
        sections.append(section)
    return sections


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def main(argv: list[str] | None = None) -> int:
    """Write the files, or compare them; 1 when one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args(argv)
    python = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    pages = {
        "cli": cli_page(),
        "configuration": configuration(),
        "metrics": metrics(),
        "protocol": protocol(),
        "reference/api": api(),
        "python": python_page(python, ROOT / "docs" / "examples" / "python"),
    }
    stale = []
    for name, text in pages.items():
        path = ROOT / "docs" / f"{name}.md"
        if args.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(str(path.relative_to(ROOT)))
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run python -m tools.gen_docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
