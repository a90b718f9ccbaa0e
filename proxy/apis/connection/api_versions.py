"""ApiVersions v0-4: the broker's offer, clamped to what keylane serves.

Behaviour: both ends of each range are clamped, and unknown keys are hidden; features stay, and one
says that keylane takes offset ranges and key ranges (docs/protocol-extensions.md). Produce
and SaslHandshake are offered from the broker's own lowest version on, which older librdkafka takes
for features. A version that is too new is answered in v0 with UNSUPPORTED_VERSION, as by a broker.
Not done: nothing.

Source: KIP-35, KIP-511.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i16

from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.extensions import FEATURE, FEATURE_VERSION
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response, write_message

SOFTWARE_VERSION: Final = 3
TOO_NEW: Final = ErrorCode.unsupported_version.to_bytes(2)

Ranges = Mapping[int, tuple[int, int]]


def names_librdkafka(request: Request) -> bool:
    """Return whether the client names its software as librdkafka or built on it (v3+).

    The body is the software's name and version and nothing else; the builds for Python, .NET,
    Go and others put `rdkafka` into one of both.
    """
    return request.api_version >= SOFTWARE_VERSION and b"rdkafka" in bytes(request.body)


def read_offer(request: Request, frame: Frame) -> Any:
    """Return the broker's answer as a kio entity.

    An older broker answers a version that it does not know in v0, whatever version was asked.
    """
    body = request.answer_body(frame)
    if request.api_version > 0 and bytes(body[:2]) == TOO_NEW:
        return read_response(request.api_key, 0, body)
    return request.decode_answer(frame)


def clamp(request: Request, answer: Any, served: Ranges) -> Buffers:
    """Return the broker's answer, with only the APIs that both sides serve."""
    clamped = replace(answer, api_keys=_clamp_keys(answer.api_keys, served))
    if request.api_version < SOFTWARE_VERSION or not hasattr(clamped, "supported_features"):
        return request.answer_entity(clamped)
    return request.answer_entity(_with_feature(request, clamped))


def _with_feature(request: Request, answer: Any) -> Any:
    module: Any = load_payload_module(ApiKey.API_VERSIONS, request.api_version, EntityType.response)
    own = module.SupportedFeatureKey(
        name=FEATURE, min_version=i16(FEATURE_VERSION), max_version=i16(FEATURE_VERSION)
    )
    return replace(answer, supported_features=(*answer.supported_features, own))


def refuse_version(request: Request, version_max: int) -> Buffers:
    """Answer a client from the future with the known versions of ApiVersions (KIP-511).

    The broker is not asked: before the login it answers ApiVersions once, and closes the connection
    at the second. The client asks again.
    """
    own = ApiVersion(api_key=i16(request.api_key), min_version=i16(0), max_version=i16(version_max))
    refusal = ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(own,))
    return request.answer((write_message(refusal),), header_version=0)


def _clamp_keys(api_keys: Any, served: Ranges) -> tuple[Any, ...]:
    clamped = []
    for entry in api_keys:
        low, high = served.get(int(entry.api_key), (0, -1))
        low, high = max(low, int(entry.min_version)), min(high, int(entry.max_version))
        if low <= high:
            clamped.append(replace(entry, min_version=i16(low), max_version=i16(high)))
    return tuple(clamped)
