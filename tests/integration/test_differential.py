"""Every API and version that keylane offers answers on plain topics as the broker does."""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, write_message
from tests.fuzz.unknown_tags import with_unknown_tags
from tests.integration.differential import (
    CLOSED,
    SILENT,
    TIMEOUT_S,
    Side,
    ask_both,
    compare,
    differences,
    show,
)
from tests.integration.questions import TOPICS, make_question
from tests.integration.twins import ask_all, both_sides, offered
from tests.transcript.entities import build

SEED = 1
QUESTIONS_EACH = 6
HIDDEN = {
    ApiKey.FETCH: "v18 is for followers and new members of a quorum (KIP-1166)",
    ApiKey.ADD_PARTITIONS_TO_TXN: "v4 and later are between brokers (KIP-890)",
    ApiKey.WRITE_TXN_MARKERS: "between brokers",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "between brokers",
    ApiKey.READ_SHARE_GROUP_STATE: "between brokers",
    ApiKey.WRITE_SHARE_GROUP_STATE: "between brokers",
    ApiKey.DELETE_SHARE_GROUP_STATE: "between brokers",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "between brokers",
}
"""APIs that a broker offers and keylane does not, or not in all versions, with the reason."""
Sides = tuple[Side, Side]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """A broker that nothing else uses, and a proxy in front of it."""
    with both_sides(tmp_path_factory.mktemp("differential")) as pair:
        yield pair


def test_what_is_hidden_is_hidden_on_purpose(sides) -> None:
    """keylane offers all that the broker offers, but for the list above."""
    direct, through = map(offered, sides)

    differing = {key for key in direct | through if direct.get(key) != through.get(key)}

    assert {ApiKey(key).name for key in differing} == {key.name for key in HIDDEN}
    for key, (low, high) in through.items():
        assert direct[key][0] <= low <= high <= direct[key][1]


def test_answers_are_those_of_the_broker(sides) -> None:
    """Generated requests of every API and version that is offered: nothing else differs."""
    direct, through = sides
    questions = ask_all(through, QUESTIONS_EACH, SEED)

    found = compare(questions, direct, through)

    assert not found, "\n".join(found[:50])
    assert len(questions) > 1000


def first(value: Any, name: str) -> dict[str, Any]:
    """The first entry of the array `name`, wherever it is."""
    if isinstance(value, dict):
        if value.get(name):
            return value[name][0]
        found = [first(item, name) for item in value.values()]
        return next((one for one in found if one), {})
    return next((one for item in value if (one := first(item, name))), {}) if isinstance(
        value, list) else {}  # fmt: skip


def drop_a_topic(answer: Any) -> None:
    """Drop a topic, as when all ids but the first are taken for the same topic."""
    del answer["topics"][-1]


def change_a_code(answer: Any) -> None:
    """Change an error code, as when an error is lost."""
    first(answer, "partitions")["error_code"] = ErrorCode.none


def lose_a_tagged_field(answer: Any) -> None:
    """Drop a tagged field, as a codec that knows less than the broker."""
    del answer["unknown_tags"]


def empty_a_null(answer: Any) -> None:
    """Replace a null, as when null and empty are taken for the same."""
    assert answer["topics"][0]["name"] is None
    answer["topics"][0]["name"] = ""


def number_a_bool(answer: Any) -> None:
    """Equal to Python, and another thing on the wire."""
    answer["topics"][0]["is_internal"] = 0


def other_order(answer: Any) -> None:
    """Change the order of an array, as when answers are put together anew."""
    answer["topics"].reverse()


def no_answer(answer: Any) -> None:
    """Drop the answer, as when keylane closes the connection over it."""
    answer.clear()


FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "topic": (drop_a_topic, ".topics: 3 entries direct, 2 through keylane"),
    "code": (change_a_code, ".topics[2].partitions[0].error_code: "),
    "tag": (lose_a_tagged_field, ".unknown_tags: only direct"),
    "null": (empty_a_null, ".topics[0].name: None direct, '' through keylane"),
    "bool": (number_a_bool, ".topics[0].is_internal: False direct, 0 through keylane"),
    "order": (other_order, ".topics[0].name: None direct, 'b' through keylane"),
    "closed": (no_answer, ".topics: only direct"),
}


class Planted(Side):
    """A side that answers what it is given, whatever is asked."""

    def __init__(self, number: int, answer: bytes | str) -> None:
        ids = {name: uuid.UUID(int=number + 1) for name in TOPICS}
        super().__init__("planted:1", number, ids)
        self._answer = answer

    def ask(
        self, _api_key: int, _version: int, _body: bytes, *, timeout_s: float = TIMEOUT_S
    ) -> bytes | str:
        assert timeout_s > 0
        return self._answer


def an_answer() -> Any:
    """A Metadata answer of three topics: one without a name, one with a partition's error."""
    schema = load_response_schema(ApiKey.METADATA, 12)
    partition = {"partition_index": 0, "leader_id": 1, "error_code": 5}
    topics = [
        {"name": None, "error_code": 100},
        {"name": "a", "partitions": []},
        {"name": "b", "partitions": [partition]},
    ]
    brokers = [{"node_id": 1, "host": "kafka", "port": 9092}]
    return with_unknown_tags(
        build(schema, {"brokers": brokers, "topics": topics}), random.Random(1)
    )


def test_an_answer_with_other_addresses_is_the_same() -> None:
    """Where keylane is does not count as a difference, and nothing else is left out."""
    question = make_question(ApiKey.METADATA, 12, 0, SEED)
    answer = an_answer()
    moved = replace(answer, brokers=(replace(answer.brokers[0], host="keylane", port=19092),))

    reported, shown = ask_both(
        question, Planted(0, write_message(answer)), Planted(1, write_message(moved))
    )

    assert list(differences(reported, shown)) == []
    assert reported["topics"][2]["partitions"][0]["error_code"] == 5


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_difference_is_found(fault) -> None:
    """A lost topic, code or tag, a null that became empty, another order: each is reported."""
    plant, reported = FAULTS[fault]
    direct = show(ApiKey.METADATA, 12, write_message(an_answer()))
    through = copy.deepcopy(direct)

    plant(through)

    found = list(differences(direct, through))
    assert any(one.startswith(reported) for one in found), found


@pytest.mark.parametrize(("direct", "through"), [(b"\x00" * 6, CLOSED), (CLOSED, SILENT)])
def test_a_connection_that_is_closed_is_a_difference(direct, through) -> None:
    """What happens instead of an answer is compared, too."""
    question = make_question(ApiKey.HEARTBEAT, 1, 0, SEED)

    reported, shown = ask_both(question, Planted(0, direct), Planted(1, through))

    assert list(differences(reported, shown))


def test_questions_hold_what_clients_send() -> None:
    """Null, empty, many, unknown, and ids: each stands in some question of Metadata v13."""
    asked = [
        read_request(ApiKey.METADATA, 13, memoryview(one.body))
        for one in (make_question(ApiKey.METADATA, 13, n, SEED) for n in range(60))
    ]

    topics = [one.topics for one in asked]
    entries = [entry for some in topics for entry in some or ()]
    assert {None, ()} <= {some if not some else True for some in topics}
    assert any(len(some or ()) > 1 and all(one.topic_id for one in some) for some in topics)
    assert {None, "", "diff-@@-one", "diff-@@-none"} <= {entry.name for entry in entries}
    assert any(entry.topic_id and entry.name == "" for entry in entries)
