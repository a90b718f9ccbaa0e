"""A broker of a later Kafka behind keylane: plain topics and lanes are unharmed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response
from tests.integration.conftest import make_topic_factory
from tests.integration.differential import Side, compare
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.questions import make_question
from tests.integration.tomorrow import FEATURE, NEW_APIS, BrokerOfTomorrow, broker_of_tomorrow
from tests.integration.twins import SETTINGS, ask_all, offered, sides_of

SEED = 3
QUESTIONS_EACH = 2
KEYS = [f"key-{number}" for number in range(50)]
OWN_ANSWERS = ("OFFSET_COMMIT", "OFFSET_FETCH")
"""keylane itself answers for topic ids that no topic has; such entries have no tagged fields."""
PROTOCOLS = [
    ("aiokafka", "classic"),
    ("confluent", "classic"),
    ("confluent", "consumer"),
    ("java", "classic"),
    ("java", "consumer"),
]
"""Without kafka-python: it cannot read unknown tagged fields, of a broker itself either."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerOfTomorrow]:
    """The broker; it must have been able to read all that it was asked."""
    with broker_of_tomorrow(tmp_path_factory.mktemp("tomorrow"), SETTINGS) as found:
        yield found
    assert not found.faults
    assert not found.refused


@pytest.fixture(scope="module")
def sides(broker, tmp_path_factory) -> Iterator[tuple[Side, Side]]:
    """The broker, and keylane in front of it; no topic has lanes."""
    log_path = tmp_path_factory.mktemp("sides") / "keylane.log"
    with sides_of(broker.bootstrap, log_path) as pair:
        yield pair


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[tuple[BrokerOfTomorrow, KeylaneProcess]]:
    """Another such broker, for topics with lanes, and keylane in front of it."""
    folder = tmp_path_factory.mktemp("stage")
    with broker_of_tomorrow(folder / "kafka", SETTINGS) as found:
        proxy = KeylaneProcess(found.bootstrap, ("lanes-*=4",), log_path=folder / "keylane.log")
        try:
            yield found, proxy.start()
        finally:
            proxy.stop()
    assert not found.faults
    assert not found.refused


def test_keylane_offers_what_it_knows(sides, broker) -> None:
    """No version or API more than with the broker of today; features pass."""
    direct, through = map(offered, sides)

    assert direct.keys() - through.keys() >= NEW_APIS.keys()
    assert all(direct[key][1] == broker.offer[key][1] + 1 for key in through)
    assert all(high <= broker.offer[key][1] for key, (_, high) in through.items())
    for side in sides:
        body = side.ask(ApiKey.API_VERSIONS, 3, make_question(ApiKey.API_VERSIONS, 3, 0, 0).body)
        assert isinstance(body, bytes)
        answer = read_response(ApiKey.API_VERSIONS, 3, memoryview(body))
        assert FEATURE in {one.name for one in answer.finalized_features}


def test_a_client_of_tomorrow_is_shown_a_version_that_it_can_ask(sides) -> None:
    """ApiVersions of a version that keylane does not know: answered in v0, as KIP-511 has it."""
    _, through = sides

    body = through.ask(ApiKey.API_VERSIONS, 5, b"")

    assert isinstance(body, bytes)
    answer = read_response(ApiKey.API_VERSIONS, 0, memoryview(body))
    assert answer.error_code == 35
    assert [(one.api_key, one.max_version) for one in answer.api_keys] == [(18, 4)]


def test_answers_are_those_of_the_broker(sides, broker) -> None:
    """Generated questions of each API and version: tagged fields stay, too, at every level."""
    direct, through = sides
    questions = ask_all(through, QUESTIONS_EACH, SEED)

    found = compare(questions, direct, through)

    others = [one for one in found if not is_own_answer(one)]
    assert not others, "\n".join(others[:50])
    assert len(questions) > 400
    assert not broker.refused


def is_own_answer(difference: str) -> bool:
    """Return whether only tagged fields are missing, of an entry that the broker was not asked."""
    return difference.startswith(OWN_ANSWERS) and difference.endswith(".unknown_tags: only direct")


@pytest.mark.parametrize("label", [pytest.param("plain", marks=pytest.mark.long), "lanes"])
@pytest.mark.parametrize(("library", "protocol"), PROTOCOLS)
def test_stock_members(label, library, protocol, stage, request) -> None:
    """Each value once, at two members that commit."""
    broker, proxy = stage
    admin = AdminClient({"bootstrap.servers": broker.behind})
    name = make_topic_factory(admin, request.node.name)(label, partitions=2)

    with Group(proxy.bootstrap, name, f"g-{name}", protocol=protocol) as group:
        group.add(library, 2)
        group.wait_for_members(2)
        values = produce(proxy.bootstrap, name, KEYS, rounds=2)
        group.wait_for_values(values)
        group.wait_for_commits()

    assert group.seen.values() == dict.fromkeys(values, 1)
