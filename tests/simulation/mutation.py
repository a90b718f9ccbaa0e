"""A mistake that is put into keylane on purpose, for as long as a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

Patches = Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    name: str
    invariant: str
    patches: Patches

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Make it, as long as the block runs."""
        with ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


def patch(owner: Any, name: str, new: Any) -> Patches:
    """One attribute."""
    return lambda: [mock.patch.object(owner, name, new)]


def nothing(*_: Any, **__: Any) -> None:
    """Nothing is done."""
