"""keylane/config/node.py: accepted values, their precedence, and the texts of refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keylane.config.node import (
    GroupRule,
    LaneRule,
    ProxyConfig,
    split_address,
)
from keylane.config.rule_forms import parse_group_rule, parse_lane_rule
from keylane.config.sources import load_config
from keylane.errors import ConfigInvalid
from keylane.keyrange.space import LANE_COUNT_MAX

UPSTREAM = "127.0.0.1:9092"


def load(
    *, text: str | None = None, folder: Path = Path(), environment: Any = None, **flags: Any
) -> ProxyConfig:
    """Load from a file of `text` (written to `folder`), an environment, and flags."""
    path = None
    if text is not None:
        path = folder / "keylane.yaml"
        path.write_text(text)
    return load_config(path=path, environment=environment or {}, flags=flags).config


def test_an_upstream_is_all_that_is_needed() -> None:
    """Every other key has a default; the advertised host is the one that is listened on."""
    config = load(bootstrap=UPSTREAM)

    assert config.bootstrap == UPSTREAM
    assert config.lanes == ()
    assert config.advertised_host == "127.0.0.1"


def test_every_key_is_documented() -> None:
    """Each key has a description: the configuration page is made from them."""
    for model in (ProxyConfig, LaneRule, GroupRule):
        for key, field in model.model_fields.items():
            assert field.description or key == "lanes", key


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """A value counts the more, the nearer it is to the command line."""
    text = "bootstrap: file:1\nlisten: file:1\nclient_id: file"
    environment = {"KEYLANE_BOOTSTRAP": "environment:2", "KEYLANE_LISTEN": "environment:2"}

    config = load(text=text, folder=tmp_path, environment=environment, bootstrap="flag:3")

    assert (config.bootstrap, config.listen, config.client_id) == (
        "flag:3",
        "environment:2",
        "file",
    )


def test_a_flag_left_out_decides_nothing() -> None:
    """None, argparse's value for an absent flag, leaves the environment's value standing."""
    config = load(environment={"KEYLANE_BOOTSTRAP": UPSTREAM}, bootstrap=None)

    assert config.bootstrap == UPSTREAM


def test_environment_values_have_their_types() -> None:
    """Numbers are read from text, lane rules from YAML."""
    environment = {
        "KEYLANE_CACHE_BYTES_MAX": "1048576",
        "KEYLANE_IDLE_TIMEOUT_S": "1.5",
        "KEYLANE_LANES": "[{topic: orders, lanes: 16}]",
    }

    config = load(environment=environment, bootstrap=UPSTREAM)

    assert (config.cache_bytes_max, config.idle_timeout_s) == (1_048_576, 1.5)
    assert config.lanes == (LaneRule(topic="orders", lanes=16),)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, "bootstrap is missing: give --bootstrap, the variable KEYLANE_BOOTSTRAP"),
        ({"bootstrap": "nowhere"}, "bootstrap: 'nowhere' is not host:port"),
        ({"bootstrap": "a:1,b"}, "bootstrap: 'b' is not host:port"),
        ({"bootstrap": UPSTREAM, "listen": "a:65536"}, "listen: "),
        ({"bootstrap": UPSTREAM, "control": "a"}, "control: "),
        ({"bootstrap": UPSTREAM, "colour": "red"}, "colour: "),
        ({"bootstrap": UPSTREAM, "cache_bytes_max": -1}, "cache_bytes_max: "),
        ({"bootstrap": UPSTREAM, "lanes": [{"topic": "a b", "lanes": 1}]}, "lanes.0.topic: "),
        ({"bootstrap": UPSTREAM, "lanes": [{"topic": "a", "lanes": 0}]}, "lanes.0.lanes: "),
        (
            {"bootstrap": UPSTREAM, "lanes": [{"topic": "a", "lanes": LANE_COUNT_MAX + 1}]},
            "lanes.0.lanes: ",
        ),
        ({"bootstrap": UPSTREAM, "lanes": [{"topic": "__x", "lanes": 1}]}, "internal topics"),
        ({"bootstrap": UPSTREAM, "lanes": [{"topic": "a"}]}, "lanes.0: needs `lanes` or `plan`"),
        (
            {"bootstrap": UPSTREAM, "lanes": [{"topic": "a", "lanes": 1, "plan": "p.json"}]},
            "lanes.0: needs `lanes` or `plan`",
        ),
        (
            {
                "bootstrap": UPSTREAM,
                "lanes": [{"topic": "a", "plan": "p.json", "hash": "murmur2"}],
            },
            "lanes.0: hash: a plan has cuts in the space of xxh64",
        ),
        ({"bootstrap": UPSTREAM, "lane_name_pattern": "{topic}"}, "lane_name_pattern: needs"),
        ({"bootstrap": UPSTREAM, "advertise_port": 0}, "advertise_port: "),
        ({"bootstrap": UPSTREAM, "advertise_port_step": 9}, "step: needs advertise_port"),
        (
            {"bootstrap": UPSTREAM, "advertise_port": 65000, "advertise_port_step": 9, "node": 99},
            "advertise_port: 65891 + 0 is beyond 65535",
        ),
        ({"bootstrap": UPSTREAM, "advertise_pattern": "b{broker}.k"}, "is not host:port"),
        ({"bootstrap": UPSTREAM, "advertise_pattern": "k:1"}, "pattern: needs {broker} once"),
        ({"bootstrap": UPSTREAM, "advertise_pattern": "{broker}{node}{node}:1"}, "{node} once"),
        ({"bootstrap": UPSTREAM, "advertise_pattern": "{broker}.{rack}:1"}, "no host names"),
        ({"bootstrap": UPSTREAM, "advertise_pattern": "b_{broker}:1"}, "no host names"),
        ({"bootstrap": UPSTREAM, "advertise_pattern": "b{broker}.k:0"}, "needs a port"),
        (
            {"bootstrap": UPSTREAM, "advertise_pattern": "b{broker}:1", "advertise_port": 1},
            "advertise_pattern: has the port",
        ),
        ({"bootstrap": UPSTREAM, "lane_name_pattern": "{topic}/{lanes}"}, "Kafka refuses"),
    ],
)
def test_a_refusal_names_the_key(flags: dict[str, Any], named: str) -> None:
    """What cannot be used is refused with the key's name and what was wrong with it."""
    with pytest.raises(ConfigInvalid) as caught:
        load(**flags)

    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n- b", "a: [", "\x00"])
def test_a_file_that_holds_no_keys_is_refused(text: str, tmp_path: Path) -> None:
    """A list, broken YAML and binary content are refused with the file's name."""
    with pytest.raises(ConfigInvalid, match=r"keylane\.yaml"):
        load(text=text, folder=tmp_path, bootstrap=UPSTREAM)


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    """A wrong path is the operator's error, reported in one line."""
    with pytest.raises(ConfigInvalid, match=r"none\.yaml"):
        load_config(path=tmp_path / "none.yaml", environment={}, flags={})


def test_an_empty_file_decides_nothing(tmp_path: Path) -> None:
    """A file of comments only is as good as none."""
    config = load(text="# nothing yet\n", folder=tmp_path, bootstrap=UPSTREAM)

    assert config == load(bootstrap=UPSTREAM)


def test_an_empty_lane_name_pattern_turns_lane_names_off() -> None:
    """An empty text, which an environment variable can hold, means None."""
    config = load(environment={"KEYLANE_LANE_NAME_PATTERN": ""}, bootstrap=UPSTREAM)

    assert config.lane_name_pattern is None


@pytest.mark.parametrize(
    ("glob", "topic", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "Orders", False),
        ("orders", "orders-2", False),
        ("shop-*", "shop-eu", True),
        ("shop-*", "shop", False),
        ("*", "orders", True),
        ("*", "__consumer_offsets", False),
        ("o?ders", "orders", True),
    ],
)
def test_a_rule_matches_whole_names(glob: str, topic: str, matches: bool) -> None:
    """A glob is held against the whole name, in its case; internal topics never match."""
    assert LaneRule(topic=glob, lanes=2).matches(topic) is matches


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        (" broker:0 ", ("broker", 0)),
        ("[::1]:9092", ("::1", 9092)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    """Names, IPv4 and bracketed IPv6 are read; port 0 means any."""
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """A text without a host or a legal port is refused."""
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(text)


def test_a_lane_flag_is_topic_and_count() -> None:
    """`shop-*=4` gives all shops 4 lanes; a file is a plan, whatever stands in its path."""
    assert parse_lane_rule("shop-*=4") == {"topic": "shop-*", "lanes": 4}
    assert parse_lane_rule("orders=a=b/16.json") == {"topic": "orders", "plan": "a=b/16.json"}


@pytest.mark.parametrize("text", ["orders", "orders=", "orders=x", "=", "orders=-1", "orders=1.5"])
def test_a_broken_lane_flag_is_refused(text: str) -> None:
    """The refusal shows the flag and what was expected."""
    with pytest.raises(ConfigInvalid, match="--lanes"):
        parse_lane_rule(text)


def test_the_first_group_rule_that_fits_names_the_assignor() -> None:
    """Only a rule keeps a group's own assignor; rules come from YAML text as well."""
    text = "[{group: billing-test, assignor: client}, {group: 'billing-*', assignor: key-range}]"

    config = load(bootstrap=UPSTREAM, environment={"KEYLANE_GROUPS": text})

    groups = ("billing-eu", "billing-test", "other")
    assert [config.has_client_assignor(group) for group in groups] == [False, True, False]


def test_an_unknown_assignor_is_refused() -> None:
    """The refusal names the key."""
    with pytest.raises(ConfigInvalid, match=r"groups\.0\.assignor"):
        load(bootstrap=UPSTREAM, groups=[{"group": "g", "assignor": "best"}])


def test_an_assignor_flag_is_group_and_name() -> None:
    """`billing-*=key-range`: the last = counts, so a group id may hold one."""
    assert parse_group_rule("a=b=key-range") == {"group": "a=b", "assignor": "key-range"}


@pytest.mark.parametrize("text", ["billing", "=key-range", ""])
def test_a_broken_assignor_flag_is_refused(text: str) -> None:
    """The refusal shows the flag and what was expected."""
    with pytest.raises(ConfigInvalid, match="--assignor"):
        parse_group_rule(text)


@pytest.mark.parametrize("source", ["environment", "flags"])
def test_lists_come_from_variables_and_flags_as_yaml(source) -> None:
    """`accept_layout=[a, b]` is a list in a variable and in `--set`, as it is in the file."""
    text = "[orders, shop-a]"
    given = {"environment": {}, "flags": {"bootstrap": "k:1"}}
    if source == "environment":
        given["environment"] = {"KEYLANE_ACCEPT_LAYOUT": text}
    else:
        given["flags"]["accept_layout"] = text

    config = load_config(path=None, **given).config

    assert config.accept_layout == ("orders", "shop-a")


BOUND = 40_000
"""Where a listener of these tests is said to be bound."""


@pytest.mark.parametrize(
    ("flags", "bootstrap", "broker"),
    [
        ({}, ("127.0.0.1", BOUND), ("127.0.0.1", BOUND)),
        ({"advertise": "k"}, ("k", BOUND), ("k", BOUND)),
        ({"advertise": "k", "advertise_port": 30_900}, ("k", 30_900), ("k", 30_908)),
        (
            {"advertise": "k", "advertise_port": 30_900, "advertise_port_step": 20, "node": 3},
            ("k", 30_960),
            ("k", 30_968),
        ),
        (
            {"advertise": "k", "advertise_port": 30_900, "advertise_port_step": 20},
            ("k", 30_900),
            ("k", 30_908),
        ),
        (
            {"advertise": "k.x", "advertise_pattern": "n{node}-b{broker}.k.x:443", "node": 3},
            ("k.x", 443),
            ("n3-b7.k.x", 443),
        ),
        (
            {"advertise": "k.x", "advertise_pattern": "n{node}-b{broker}.k.x:443"},
            ("k.x", 443),
            ("n0-b7.k.x", 443),
        ),
    ],
)
def test_addresses_that_clients_get(
    flags: dict[str, Any], bootstrap: tuple[str, int], broker: tuple[str, int]
) -> None:
    """The bound port under the host's name, unless another port or a name leads there."""
    flags = {"node_secret_file": "secret", **flags}
    config = load(bootstrap=UPSTREAM, listen="127.0.0.1:19092", **flags)

    assert config.advertised_bootstrap(BOUND) == bootstrap
    assert config.advertised_broker(7, BOUND) == broker


def test_a_broker_beyond_the_last_port_is_refused() -> None:
    """A port that does not exist is never given to a client."""
    config = load(bootstrap=UPSTREAM, advertise_port=65_000)

    with pytest.raises(ValueError, match="65000 \\+ 536 is beyond 65535"):
        config.advertised_broker(535, BOUND)


@pytest.mark.parametrize(
    "flags",
    [
        {"node": 0, "listen": "0.0.0.0:1"},
        {"workers": 2, "listen": "10.0.0.1:1"},
        {"node": 0, "advertise": "kafka.example"},
        {"node": 0, "advertise_pattern": "n{node}-b{broker}.k.x:443"},
    ],
)
def test_nodes_that_others_reach_need_a_secret(flags: dict[str, Any]) -> None:
    """Else anybody in their group is taken for one; alone, or on one machine, it may be left."""
    with pytest.raises(ConfigInvalid, match=r"node_secret_file: needed .* openssl rand -hex 32"):
        load(bootstrap=UPSTREAM, **flags)

    assert load(bootstrap=UPSTREAM, node_secret_file="file", **flags).node_secret_file == "file"
    assert load(bootstrap=UPSTREAM, node=3).node_secret_file is None
    assert load(bootstrap=UPSTREAM, listen="0.0.0.0:1").node_secret_file is None
