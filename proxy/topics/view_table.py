"""The views on topics that are in use, by name and by id."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from typing import Final

from keylane.proxy.topics.view import View

RENAMED_VIEWS_MAX: Final = 4_096
"""Lane names in use, of all topics; a client may choose one of 1024 for each topic."""


class ViewTable:
    """Views of lanes, each one stable object per name.

    Invariant: views under names that clients choose are the last RENAMED_VIEWS_MAX in use.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, View] = {}
        """Views by name; not to be changed."""
        self._by_id: dict[uuid.UUID, View] = {}
        self._renamed: OrderedDict[str, None] = OrderedDict()
        """Names that clients have chosen, in the order of their last use."""

    def use(self, name: str) -> View | None:
        """Return the view of a name, which is in use."""
        view = self.by_name.get(name)
        if view is not None and view.is_renamed:
            self._renamed.move_to_end(name)
        return view

    def use_id(self, view_id: uuid.UUID) -> View | None:
        """Return the view of an id that clients know, which is in use."""
        view = self._by_id.get(view_id)
        if view is not None and view.is_renamed:
            self._renamed.move_to_end(view.name)
        return view

    def of_id(self, view_id: uuid.UUID) -> View | None:
        """Return the view of an id; it does not count as used."""
        return self._by_id.get(view_id)

    def add(self, view: View) -> None:
        """Keep a view; the one whose name was not used for longest goes when there are too many."""
        self.by_name[view.name] = self._by_id[view.view_id] = view
        if view.is_renamed:
            self._renamed[view.name] = None
            if len(self._renamed) > RENAMED_VIEWS_MAX:
                # A client that still uses the name asks again, as for a topic with a new id.
                self.drop(next(iter(self._renamed)))

    def has_topic(self, topic: str) -> bool:
        """Return whether there is a view of a topic under any name."""
        return any(view.topic == topic for view in self.by_name.values())

    def drop_topic(self, topic: str) -> None:
        """Drop the views of a topic under all names."""
        for view in [view for view in self.by_name.values() if view.topic == topic]:
            self.drop(view.name)

    def drop(self, name: str) -> None:
        """Drop the view of a name."""
        view = self.by_name.pop(name)
        del self._by_id[view.view_id]
        self._renamed.pop(name, None)
