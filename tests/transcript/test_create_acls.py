"""CreateAcls v1-3: rules for lane names are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, make_request, serve, versions

CREATE = 30
INVALID_REQUEST, SECURITY_DISABLED = 42, 54
TOPIC, GROUP, LITERAL, PREFIXED = 2, 3, 3, 4
LANES = (TOPIC, "orders.lanes-8", LITERAL)


def rules(*entries: tuple[int, str, int]) -> dict[str, Any]:
    return {
        "creations": [
            {"resource_type": kind, "resource_name": name, "resource_pattern_type": pattern}
            for kind, name, pattern in entries
        ]
    }


@pytest.mark.parametrize("version", versions(CREATE))
async def test_a_rule_for_a_lane_name_is_refused_in_its_place(version) -> None:
    """It would allow or deny nothing. Results have no names, so the order counts."""
    context = FakeContext()
    plain, prefix = (TOPIC, "plain", LITERAL), (TOPIC, "orders.lanes-8", PREFIXED)
    group = (GROUP, "orders.lanes-8", LITERAL)
    done = [{"error_code": code} for code in (0, SECURITY_DISABLED, 0)]
    context.expect(CREATE, rules(plain, prefix, group), {"results": done}, version=version)

    found = await call(context, CREATE, version, rules(plain, LANES, prefix, LANES, group))

    codes = [result["error_code"] for result in found["results"]]
    assert codes == [0, INVALID_REQUEST, SECURITY_DISABLED, INVALID_REQUEST, 0]
    assert "name orders itself" in found["results"][1]["error_message"]


@pytest.mark.parametrize("version", versions(CREATE))
async def test_other_rules_pass_as_they_are(version) -> None:
    """Byte for byte, also of a topic whose own name means lanes."""
    context = FakeContext()
    asked = make_request(CREATE, version, rules((TOPIC, "orders", LITERAL)))
    context.expect(CREATE, bytes(asked.body), {"results": [{"error_code": 0}]})

    assert await serve(context, asked)
