"""keylane/config/explain.py: values, defaults, places, other names, and what is masked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from keylane.config.explain import MASK, ConfigKey, explain
from keylane.config.node import ProxyConfig
from keylane.config.origins import ORIGINS_VARIABLE, LoadedConfig, Origin
from keylane.config.sources import load_config
from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.memory_plan import plan_memory
from keylane.proxy.runtime.workers import worker_config

UPSTREAM = "127.0.0.1:9092"
DOCUMENTS = {
    "accept.individual.commit": True,
    "max.bytes.key.range.cache": 209_715_200,
    "max.bytes.fetcher.filtering": 104_857_600,
    "individual.commit.log.segment.bytes": 10_485_760,
    "max.num.ranges.to.commit": 10_000,
    "accept.range.fetch": [],
    "allow.individual.commit": [],
}
"""Names of the KIP draft with their defaults; the two lists are empty where topics and clients
have the draft's default."""


def load(tmp_path: Path, *, text: str = "", environment=None, places=None, **flags) -> LoadedConfig:
    """Read a file of `text`, an environment and flags."""
    path = tmp_path / "keylane.yaml"
    path.write_text(text)
    return load_config(path=path, environment=environment or {}, flags=flags, places=places)


def by_key(loaded: LoadedConfig, **known) -> dict[str, ConfigKey]:
    """Return the reports by key."""
    return {report.key: report for report in explain(loaded, **known).keys}


def test_each_value_names_its_place(tmp_path) -> None:
    """The place is that of the value that won: flag over variable over file over default."""
    loaded = load(
        tmp_path,
        text=f"bootstrap: {UPSTREAM}\nlisten: 127.0.0.1:1\nclient_id: of-file",
        environment={"KEYLANE_LISTEN": "127.0.0.1:2", "KEYLANE_CLIENT_ID": "of-variable"},
        places={"idle_timeout_s": "--set"},
        listen="127.0.0.1:3",
        idle_timeout_s="5",
        lanes=None,
    )

    found = by_key(loaded)

    shown = {key: (found[key].value, found[key].source, found[key].place) for key in (
        "bootstrap", "listen", "client_id", "idle_timeout_s", "lanes",
    )}  # fmt: skip
    assert shown == {
        "bootstrap": (UPSTREAM, "file", str(tmp_path / "keylane.yaml")),
        "listen": ("127.0.0.1:3", "flag", "--listen"),
        "client_id": ("of-variable", "environment", "KEYLANE_CLIENT_ID"),
        "idle_timeout_s": (5.0, "flag", "--set"),
        "lanes": ([], "default", None),
    }


def test_every_key_is_there_with_its_default(tmp_path) -> None:
    """Each key of the configuration is reported once, in order; the report is JSON."""
    loaded = load(tmp_path, bootstrap=UPSTREAM)

    report = explain(loaded)

    keys = [entry.key for entry in report.keys if entry.level == "node"]
    assert sorted(keys) == sorted([*ProxyConfig.model_fields, "login_password"])
    assert keys[:2] == ["bootstrap", "listen"]
    assert json.loads(json.dumps(asdict(report)))["keys"][0]["is_required"]
    found = by_key(loaded)
    assert (found["idle_timeout_s"].default, found["bootstrap"].default) == (600.0, None)


def test_every_name_of_the_documents_is_there(tmp_path) -> None:
    """The KIP draft's names are found as keys or aliases, with the draft's defaults."""
    found = by_key(load(tmp_path, bootstrap=UPSTREAM))
    named = {alias: entry for entry in found.values() for alias in entry.aliases} | found

    assert {name: named[name].default for name in DOCUMENTS} == DOCUMENTS


def test_a_rule_is_shown_with_all_that_holds_for_it(tmp_path) -> None:
    """A rule's own defaults are in force as well."""
    text = f"bootstrap: {UPSTREAM}\nlanes: [{{topic: orders, lanes: 16}}]"

    rule = by_key(load(tmp_path, text=text))["lanes"].value[0]

    assert (rule["topic"], rule["lanes"], rule["hash"]) == ("orders", 16, "xxh64")


def test_a_password_is_masked(tmp_path) -> None:
    """That the variable is set is reported, its value is not even asked for."""
    loaded = load(tmp_path, bootstrap=UPSTREAM)

    assert by_key(loaded)["login_password"].value is None
    shown = by_key(loaded, has_password=True)["login_password"]
    assert (shown.value, shown.place) == (MASK, "KEYLANE_LOGIN_PASSWORD")


def test_a_file_of_a_secret_is_no_secret(tmp_path) -> None:
    """The path of a token's file helps to find it, and is shown."""
    loaded = load(tmp_path, bootstrap=UPSTREAM, node_secret_file="/run/secrets/node")

    assert by_key(loaded)["node_secret_file"].value == "/run/secrets/node"


def test_bounds_that_follow_from_memory_say_so(tmp_path) -> None:
    """The value in force is the one that the memory plan left."""
    loaded = load(tmp_path, bootstrap=UPSTREAM)
    plan = plan_memory(loaded.config, 1024**3, processors=2)

    found = by_key(loaded, in_force=plan.applied_to(loaded.config))

    cache = found["cache_bytes_max"]
    assert (cache.value, cache.adjusted_by) == (plan.bounds["cache_bytes_max"], "memory_max")
    assert cache.value < cache.default
    assert found["idle_timeout_s"].adjusted_by is None


def test_a_switch_wins(tmp_path) -> None:
    """What the control port has changed is in force."""
    loaded = load(tmp_path, bootstrap=UPSTREAM)

    found = by_key(loaded, switched={"accept_individual_commit": False})

    entry = found["accept_individual_commit"]
    assert (entry.value, entry.adjusted_by, entry.source) == (False, "/switches", "default")


def test_another_name_means_the_same(tmp_path) -> None:
    """A name of the documents can be written in the place of the key."""
    text = f"bootstrap: {UPSTREAM}\nmax.bytes.key.range.cache: 1048576"

    loaded = load(tmp_path, text=text, **{"accept.individual.commit": "false"})

    assert loaded.config.cache_bytes_max == 1_048_576
    assert not loaded.config.accept_individual_commit
    assert loaded.origin_of("cache_bytes_max").source == "file"


def test_a_key_under_both_names_is_refused(tmp_path) -> None:
    """Two values of one key are a mistake: neither wins silently."""
    text = "cache_bytes_max: 1048576\nmax.bytes.key.range.cache: 2097152"

    with pytest.raises(ConfigInvalid, match="another name of cache_bytes_max"):
        load(tmp_path, text=text, bootstrap=UPSTREAM)


def test_a_worker_names_the_places_of_its_parent(tmp_path) -> None:
    """What the parent wrote for a worker is reported as set where the operator has set it."""
    parent = load(
        tmp_path, text=f"bootstrap: {UPSTREAM}\nlisten: 127.0.0.1:19092", workers=2, node=4
    )
    worker = worker_config(parent.config, 1)
    folder = tmp_path / "worker"
    folder.mkdir()
    text = json.dumps(worker.model_dump(mode="json", exclude_unset=True))

    read = load(folder, text=text, environment={ORIGINS_VARIABLE: parent.text_for_worker(worker)})

    assert read.config == worker
    assert read.origin_of("listen") == Origin("file", str(tmp_path / "keylane.yaml"))
    assert read.origin_of("node") == Origin("flag", "--workers")


@pytest.mark.parametrize("text", ["{", "[]", '{"listen": 3}', '{"listen": ["nowhere", "x"]}'])
def test_origins_that_are_none_are_passed_over(tmp_path, text) -> None:
    """A variable that no parent has written does no harm: the file is the place."""
    loaded = load(tmp_path, text=f"bootstrap: {UPSTREAM}", environment={ORIGINS_VARIABLE: text})

    assert loaded.origin_of("bootstrap").source == "file"


def test_a_configuration_made_in_code() -> None:
    """A node inside another program has no file: what is set was set by the program."""
    found = by_key(LoadedConfig.of(ProxyConfig(bootstrap=UPSTREAM)))

    assert (found["bootstrap"].source, found["listen"].source) == ("program", "default")
