"""What connections hold, step by step: the sums are right and no bound is passed."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keylane.proxy.session.memory_watch import HoldingBounds, Holdings

BOUNDS = HoldingBounds(in_all_max=1000, per_principal_max=400, logins_max=100)


class HoldingsMachine(RuleBasedStateMachine):
    """Connections come, grow, log in and go; those that have to go are closed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.holdings: Holdings[int] = Holdings(BOUNDS)
        self.held: dict[int, tuple[int, str | None, bool]] = {}

    @rule(
        connection=st.integers(0, 30),
        size=st.integers(0, 700),
        principal=st.sampled_from([None, "a", "b", "c"]),
        is_logged_in=st.booleans(),
    )
    def change(self, connection: int, size: int, principal: str | None, is_logged_in: bool) -> None:
        """It holds so much now."""
        before = dict(self.held)
        self.held[connection] = size, principal, is_logged_in
        heavy = self.holdings.change(connection, size, principal, is_logged_in=is_logged_in)
        for each, reason in heavy:
            assert each in before or each == connection
            assert self.held[each][2] == is_logged_in, "one pool does not pay for the other"
            assert "bytes_max" in reason or "per_principal_max" in reason
            self.leave(each)

    @rule(connection=st.integers(0, 30))
    def leave(self, connection: int) -> None:
        """It has ended."""
        self.holdings.leave(connection)
        self.held.pop(connection, None)

    @invariant()
    def sums_are_right(self) -> None:
        """As counted anew."""
        self.holdings.check()
        known = [each for each in self.held.values() if each[2]]
        assert self.holdings.bytes_used == sum(size for size, _, _ in known)

    @invariant()
    def bounds_hold(self) -> None:
        """In all, of each principal, and of those without a login."""
        by_principal: defaultdict[str | None, int] = defaultdict(int)
        for size, principal, is_logged_in in self.held.values():
            by_principal[principal if is_logged_in else "?"] += size
        assert self.holdings.bytes_used <= BOUNDS.in_all_max
        assert self.holdings.login_bytes_used <= BOUNDS.logins_max
        for name in "abc":
            assert by_principal[name] <= BOUNDS.per_principal_max


TestHoldings = HoldingsMachine.TestCase
