"""Proof that a connection is of a client: until then little is taken from it.

Source: KIP-152; Kafka's `SaslServerAuthenticator`.

Where a login is required, its end is the proof; elsewhere it is the first answer of a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from keylane.proxy.net.framing import Frame
from keylane.proxy.net.upstream import OnResponse

ANSWERS_THAT_PROVE: Final = 2
"""Answers after the last token, for mechanisms that do not say that the login is over: a broker
answers one request that comes too early, with an error, and closes the connection."""


class Proof:
    """State of one connection. Invariants: `on_proven` is called once; a proof lasts."""

    def __init__(self, *, is_login_required: bool, on_proven: Callable[[], None]) -> None:
        self._on_proven, self._is_login_required = on_proven, is_login_required
        self.may_relay = not is_login_required
        """True: more than the login may go to the broker."""
        self._answers_left = 0 if is_login_required else 1
        """Answers of the broker from now on that are the proof; 0: none is."""
        self.is_given = False

    @property
    def is_owed(self) -> bool:
        """Return whether a login is required that is not over."""
        return self._is_login_required and not self.is_given

    def token_taken(self, *, is_over: bool | None) -> None:
        """Let the client go on, as far as the broker lets it: the broker took a token.

        is_over: the login has ended by that. None: the mechanism does not say, and the broker's
        next answers show it; the answer to this token comes before them.
        """
        self.may_relay = True
        if is_over:
            self._give()
        elif is_over is None and not self.is_given:
            self._answers_left = 1 + ANSWERS_THAT_PROVE

    def noting(self, on_response: OnResponse) -> OnResponse:
        """Return `on_response`, with the answer counted."""

        def answered(frame: Frame) -> None:
            on_response(frame)
            if self._answers_left:
                self._answers_left -= 1
                if not self._answers_left:
                    self._give()

        return answered

    def _give(self) -> None:
        if not self.is_given:
            self.is_given, self._answers_left = True, 0
            self._on_proven()
