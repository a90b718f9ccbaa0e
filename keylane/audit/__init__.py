"""Reports of consumers on their work, so that it can be audited: the format, and reporters.

`from keylane.audit import AuditReporter, AsyncAuditReporter, lane_places`. The client library of
a reporter is loaded with its first use, and no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from keylane.audit.async_reporter import AsyncAuditReporter
    from keylane.audit.record import lane_places
    from keylane.audit.reporter import AuditReporter, generation_of

__all__ = ("AsyncAuditReporter", "AuditReporter", "generation_of", "lane_places")

MODULES: Final = {
    "AsyncAuditReporter": "keylane.audit.async_reporter",
    "AuditReporter": "keylane.audit.reporter",
    "generation_of": "keylane.audit.reporter",
    "lane_places": "keylane.audit.record",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
