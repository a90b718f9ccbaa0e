"""Proof that a message is of a node: a secret that all nodes have.

Source: RFC 2104 (HMAC) with SHA-256; KIP-394 (a member id is given before a member is made);
docs/decisions/033.

A principal that may DESCRIBE the nodes' group sees its members' messages, so a proof must be worth
nothing in another place. A hello is bound to the cluster, the group and its member; a verdict to
the cluster, the group, its leader, the member that it is for, and the generation. Coordinators give
no member id twice, and a member joins under the id that it was given before.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from keylane.errors import NodeInvalid

MARK: Final = b"\x00klp1"
"""Mark before the proof: it distinguishes a message without proof from one that does not verify."""
PROOF_BYTES: Final = hashlib.sha256().digest_size
TRAILER_BYTES: Final = len(MARK) + PROOF_BYTES
SEALED_BYTES_MAX: Final = 8 << 20
"""Bound above what a coordinator stores of a whole group."""
HELLO: Final = b"keylane hello"
VERDICT: Final = b"keylane verdict"
UNSIGNED: Final = "it is not signed; a node without node_secret_file, or no node"
SIGNED: Final = "it is signed; this node has no node_secret_file, and is no node to it"
NOT_VERIFIED: Final = "its signature is not of a secret in node_secret_file, or was copied"


def hello_scope(cluster_id: str, group: str, member_id: str) -> tuple[bytes, ...]:
    """Return the parts that a hello is bound to."""
    return HELLO, cluster_id.encode(), group.encode(), member_id.encode()


def verdict_scope(
    cluster_id: str, group: str, generation_id: int, leader: str, member_id: str
) -> tuple[bytes, ...]:
    """Return the parts that the leader's word to one member is bound to."""
    places = (cluster_id, group, str(generation_id), leader, member_id)
    return VERDICT, *(place.encode() for place in places)


def prove(secret: bytes, scope: Iterable[bytes], body: bytes) -> bytes:
    """Return the proof. Each part has its length before it, so no two lists of parts are alike."""
    code = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (*scope, body):
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.digest()


def seal(body: bytes, secrets: Sequence[bytes], scope: Sequence[bytes]) -> bytes:
    """Return the message with a proof by the first secret; without secrets, as it is."""
    if not secrets:
        return body
    return body + MARK + prove(secrets[0], scope, body)


def is_sealed(message: bytes) -> bool:
    """Return whether it has a proof behind it, good or not."""
    return len(message) >= TRAILER_BYTES and message[-TRAILER_BYTES:].startswith(MARK)


def unseal(message: bytes, secrets: Sequence[bytes], scope: Sequence[bytes]) -> bytes:
    """Return the message without its proof, which any of the secrets may have made.

    Without secrets nothing is checked, and a proof is left where it is: readers pass it over.
    Raises: NodeInvalid.
    """
    if not secrets:
        return message
    if len(message) > SEALED_BYTES_MAX:
        raise NodeInvalid(f"it has {len(message)} bytes, at most {SEALED_BYTES_MAX}")
    body, trailer = message[:-TRAILER_BYTES], message[-TRAILER_BYTES:]
    if not is_sealed(message):
        raise NodeInvalid(UNSIGNED)
    shown = trailer[len(MARK) :]
    # Each is tried, so that the time does not show which one it was.
    known = [hmac.compare_digest(prove(secret, scope, body), shown) for secret in secrets]
    if not any(known):
        raise NodeInvalid(NOT_VERIFIED)
    return body
