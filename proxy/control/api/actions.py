"""Actions on groups over HTTP: a rebalance now, and resets of offsets; each with a preview.

Source: docs/control-api.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Protocol, TypeVar

from aiohttp import web
from pydantic import Field, StrictBool, StrictInt, StrictStr

from keylane.errors import (
    ActionInvalid,
    ActionRefused,
    ActionUnknown,
    NotCoordinator,
    UpstreamLost,
)
from keylane.offsets.resets import (
    WHERE,
    GroupReset,
    PartitionReset,
    ResetInvalid,
    Wish,
    read_target,
)
from keylane.proxy.control.api import models
from keylane.proxy.control.api.operations import READ, WRITE, ControlOperation, QueryParameter
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.api.requests import fields_of, read_body, read_name, read_query
from keylane.proxy.control.auth import identity_of
from keylane.proxy.groups.rebalanced import Rebalanced

log = logging.getLogger("keylane.control")

GROUP: Final = re.compile(r"(?s).{1,1000}")
DRY_RUN: Final = QueryParameter(
    name="dry_run", kind=bool, description="true: say what would come of it, and change nothing."
)
TOPICS_MAX: Final = 1_000
"""Topics of one reset."""
EXAMPLE: Final = {"topics": [{"topic": "orders", "partitions": [0]}], "to": "earliest"}
REDIRECTS: Final = (
    HTTPStatus.CONFLICT,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.NOT_FOUND,
)
UNKNOWN: Final = "unknown"
UNCHANGED: Final = "unchanged"
Result = TypeVar("Result")
NoteAction = Callable[[str, str | None], None]
"""Publishes an action: a sentence, and the group that it is about."""


class ResetTopic(models.Strict):
    """Partitions of a topic; null: all of them."""

    topic: models.Topic
    partitions: Annotated[list[models.Partition], Field(min_length=1)] | None = None


class ResetIn(models.Strict):
    """The place to which offsets are reset, as `kafka-consumer-groups --reset-offsets` has it."""

    topics: Annotated[
        list[ResetTopic] | None,
        Field(
            min_length=1,
            max_length=TOPICS_MAX,
            description="null: all topics of which the group has offsets.",
        ),
    ] = None
    to: Annotated[str, Field(json_schema_extra={"enum": list(WHERE)})]
    value: Annotated[
        StrictInt | StrictStr | None,
        Field(
            description="Of `offset` the offset, of `shift-by` the difference, of `datetime` a time"
            " of ISO 8601 (UTC unless it names its offset) or ms since 1970, of `duration` a time"
            " span of ISO 8601 before now."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAnswer:
    """A reset of a group, or what it would be."""

    group: str
    dry_run: StrictBool
    partitions: tuple[PartitionReset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceAnswer(Rebalanced):
    """A rebalance of a group, or what it would be."""

    group: str
    dry_run: StrictBool


class GroupActions(Protocol):
    """Ways to act on groups. All raise NotCoordinator and UpstreamLost."""

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""

    async def has_group(self, group: str) -> bool:
        """Return whether Kafka knows the group."""

    async def rebalance(self, group: str, *, is_dry: bool) -> Rebalanced:
        """Ask for a rebalance, or say what it would be. Raises: ActionRefused."""

    async def reset(self, reset: GroupReset, *, is_dry: bool) -> list[PartitionReset]:
        """Reset, or say what it would be. Raises: ActionInvalid, ActionRefused, ActionUnknown."""


class ActionHandlers:
    """Handlers of actions on groups."""

    def __init__(
        self,
        actions: GroupActions,
        *,
        elsewhere: Callable[[str], str | None],
        note: NoteAction,
    ) -> None:
        """`elsewhere` gives the address of the node that serves a group; None: here."""
        self._actions, self._elsewhere, self._note = actions, elsewhere, note

    def operations(self) -> list[ControlOperation]:
        """Return the operations on groups."""
        post = partial(ControlOperation, method="POST", query=(DRY_RUN,))
        unavailable = HTTPStatus.SERVICE_UNAVAILABLE
        return [
            post(
                path="/groups/{group}/rebalance", handler=self._rebalance, answer=RebalanceAnswer,
                problems=(*READ, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.CONFLICT, unavailable),
                summary="Deal out the lanes of a group anew, by the load of each",
            ),
            post(
                path="/groups/{group}/reset-offsets", handler=self._reset, answer=ResetAnswer,
                body=ResetIn, example=EXAMPLE,
                problems=(*_without(WRITE, HTTPStatus.PRECONDITION_FAILED), *REDIRECTS),
                summary="Set the offsets of a group without members, of all lanes",
            ),
        ]  # fmt: skip

    async def _rebalance(self, request: web.Request) -> web.Response:
        group, is_dry = self._read(request)
        done = await answered(self._actions.rebalance(group, is_dry=is_dry))
        if done.reason is not None and not await answered(self._actions.has_group(group)):
            raise _no_group(group)
        answer = RebalanceAnswer(group=group, dry_run=is_dry, **fields_of(done))
        if not is_dry:
            by = identity_of(request)
            outcome = (
                f"{len(done.moves)} lanes move" if done.is_asked else f"nothing: {done.reason}"
            )
            log.info("rebalance asked for by=%s group=%s outcome=%s", by, group, outcome)
            self._note(f"{by} asked for a rebalance of group {group}: {outcome}.", group)
        return web.json_response(asdict(answer))

    async def _reset(self, request: web.Request) -> web.Response:
        group, is_dry = self._read(request)
        body = await read_body(request, ResetIn)
        try:
            to = read_target(body.to, body.value, now_ms=self._actions.now_ms())
        except ResetInvalid as error:
            field = "/value" if body.to in WHERE else "/to"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=field) from None
        wishes = (
            None
            if body.topics is None
            else tuple(
                Wish(each.topic, None if each.partitions is None else tuple(each.partitions))
                for each in body.topics
            )
        )
        reset = GroupReset(group=group, topics=wishes, to=to)
        by, value = identity_of(request), "" if body.value is None else f" {body.value}"
        try:
            done = await answered(self._actions.reset(reset, is_dry=is_dry))
        except Problem as problem:
            if not is_dry:
                self._log_failed(by, group, f"{body.to}{value}", problem)
            raise
        if not is_dry:
            log.info(
                "offsets reset by=%s group=%s to=%s%s partitions=%d",
                by, group, body.to, value, len(done),
            )  # fmt: skip
            self._note(
                f"{by} reset the offsets of group {group} to {body.to}{value}: "
                f"{len(done)} partitions.",
                group,
            )
        answer = ResetAnswer(group=group, dry_run=is_dry, partitions=tuple(done))
        return web.json_response(asdict(answer))

    def _log_failed(self, by: str, group: str, to: str, problem: Problem) -> None:
        log.warning("offsets not reset by=%s group=%s to=%s reason=%s", by, group, to, problem)
        if problem.more.get("outcome") == UNKNOWN:
            self._note(
                f"{by} wanted to reset the offsets of group {group} to {to}, and it is not known "
                "whether Kafka has done it.",
                group,
            )

    def _read(self, request: web.Request) -> tuple[str, bool]:
        """Return the group, and whether it is a dry run. Raises: Problem."""
        group = read_name(request, "group", GROUP)
        is_dry = bool(read_query(request, (DRY_RUN,)).get(DRY_RUN.name, False))
        elsewhere = self._elsewhere(group)
        if elsewhere is not None:
            raise Problem(
                HTTPStatus.TEMPORARY_REDIRECT,
                f"another node serves group {group}",
                headers={"Location": f"{elsewhere}{request.path_qs}"},
            )
        return group, is_dry


async def answered(doing: Awaitable[Result]) -> Result:
    """Wait for an action. Raises: Problem, with the outcome where it is not known."""
    try:
        return await doing
    except ActionInvalid as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=error.field) from None
    except ActionRefused as error:
        raise Problem(HTTPStatus.CONFLICT, str(error)) from None
    except (UpstreamLost, NotCoordinator) as error:
        outcome = UNKNOWN if isinstance(error, ActionUnknown) else UNCHANGED
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            str(error),
            headers={"Retry-After": "1"},
            outcome=outcome,
        ) from None


def _no_group(group: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"there is no group {group}", field="group")


def _without(statuses: Iterable[HTTPStatus], one: HTTPStatus) -> list[HTTPStatus]:
    return [status for status in statuses if status is not one]
