"""Kafka's own list of APIs, as its jar has it: each is served, or named as not served."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from keylane.embedded.resolve import resolve_class_path
from keylane.proxy.apis import ROUTES
from keylane.proxy.apis.shared.treatments import NOT_SERVED
from keylane.wire.header import ApiKey

COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


@pytest.fixture(scope="module")
def requests() -> dict[int, dict[str, Any]]:
    """Request definitions by API key, from the clients' jar of the Kafka that tests run."""
    jar = next(
        path
        for path in map(Path, resolve_class_path().split(":"))
        if path.name.startswith("kafka-clients-")
    )
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.endswith("Request.json")]
        texts = [archive.read(name).decode() for name in names]
    found = [json.loads(COMMENT.sub("", text)) for text in texts]
    assert len(found) > 80
    return {message["apiKey"]: message for message in found}


def test_every_api_of_kafka_is_served_or_named_as_not_served(requests) -> None:
    """Under Kafka's own name."""
    known = {key: route.name for key, route in ROUTES.items()}
    known |= {key: key.schema_name for key in NOT_SERVED}

    assert known == {key: message["name"][: -len("Request")] for key, message in requests.items()}


def test_what_brokers_offer_is_served_but_what_they_use_themselves(requests) -> None:
    """Share group state and the end of transactions; no controller's API is served."""
    offered = {
        key
        for key, message in requests.items()
        if "broker" in message.get("listeners", ()) and message["validVersions"] != "none"
    }

    hidden = {ApiKey(key).schema_name for key in offered - set(ROUTES)}

    assert set(ROUTES) <= offered
    assert hidden == {
        "WriteTxnMarkers",
        "InitializeShareGroupState",
        "ReadShareGroupState",
        "WriteShareGroupState",
        "DeleteShareGroupState",
        "ReadShareGroupStateSummary",
    }


def test_all_versions_are_served_but_those_that_clients_need_not_send(requests) -> None:
    """What followers and brokers send, an unstable one, and tokens without a header."""
    missing = {}
    for key, route in ROUTES.items():
        first, _, last = requests[key]["validVersions"].partition("-")
        versions = range(int(first), int(last or first) + 1)
        served = range(route.version_min, route.version_max + 1)
        assert set(served) <= set(versions), route.name
        missing[route.name] = sorted(set(versions) - set(served))

    assert {name: versions for name, versions in missing.items() if versions} == {
        "Fetch": [18],
        "SaslHandshake": [0],
        "InitProducerId": [6],
        "AddPartitionsToTxn": [4, 5],
    }
