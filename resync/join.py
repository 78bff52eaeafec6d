"""The partial join: `make_join`, sign, `send_join` with `omit_members`, check, store.

Everything is stored in one transaction at the end, so a join that fails half way leaves nothing
behind that says the room is partial.
Source: server-server API, "Joining Rooms"; MSC3706; design, section 3, step 1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection

from federation.canonical_json import check_strict
from federation.client import FederationClient, MakeJoin, RawPdu, SendJoin
from federation.errors import FederationError, InvalidEvent
from federation.event_format import check_format
from federation.events import MAX_AUTH_EVENTS, MAX_PREV_EVENTS, Event, StateKey
from federation.identifiers import domain_of
from federation.room_versions import EventFormat, RoomVersion, get_room_version
from federation.signing import SigningKey, random_localpart, sign_event
from resync.errors import JoinFailed, ServerFailure
from resync.join_request import JoinRequest
from resync.outliers import (
    AuthOrder,
    Verdict,
    auth_dependencies,
    check_against_auth_events,
)
from resync.verify import PduVerifier
from storage import current_state, events, jobs, partial_state, rooms, state_groups
from storage.database import Database

logger = structlog.get_logger(__name__)

CREATE = StateKey("m.room.create", "")

_TEMPLATE_CONTENT = ("membership", "join_authorised_via_users_server")
"""What is taken over from the content of a `make_join` template; the rest is a stranger's."""


class InvalidJoinAnswer(FederationError):
    """What a resident answered to `make_join` or `send_join` cannot be used."""


@dataclass(frozen=True, slots=True)
class JoinResult:
    """A join that happened.

    Attributes:
        partial: whether the room still has to be resynced.
        state_events: how many state events the resident sent and we accepted.
        servers: how many servers are known to be in the room.
    """

    room_id: str
    join_event_id: str
    partial: bool
    state_events: int
    servers: int


@dataclass(slots=True)
class CheckedJoin:
    """A `send_join` answer after all checks.

    Attributes:
        join: our join event as the resident returned it.
        state: the state before it, accepted events only.
        verdicts: every event of the answer, in an order in which auth events come first.
    """

    join: Event
    state: dict[StateKey, str]
    verdicts: list[Verdict]
    servers: list[str] = field(default_factory=list)
    partial: bool = True


def build_join_event(
    answer: MakeJoin, request: JoinRequest, *, origin_server_ts: int, random_id: str
) -> dict[str, Any]:
    """The unsigned join event that a `make_join` template describes.

    Only what a join needs is taken from the template, of which the client has made sure that it
    is a join of this user to this room. `random_id` becomes the local part of the event id in
    room versions 1 and 2, which have one in the event.

    Raises:
        InvalidJoinAnswer: the template is malformed.
    """
    version = get_room_version(answer.room_version)
    template = answer.event
    content = template["content"]
    pdu: dict[str, Any] = {
        "type": "m.room.member",
        "room_id": request.room_id,
        "sender": request.user_id,
        "state_key": request.user_id,
        "content": {name: content[name] for name in _TEMPLATE_CONTENT if name in content},
        "depth": template.get("depth"),
        "auth_events": template.get("auth_events"),
        "prev_events": template.get("prev_events"),
        "origin_server_ts": origin_server_ts,
    }
    if version.event_format is EventFormat.V1:
        pdu["event_id"] = f"${random_id}:{domain_of(request.user_id)}"
    try:
        # The id does not matter yet: this is for the types of the fields.
        event = Event.from_pdu(pdu, answer.room_version, event_id="$unsigned")
    except InvalidEvent as error:
        raise InvalidJoinAnswer(f"the make_join template is malformed: {error}") from None
    if len(event.prev_event_ids) > MAX_PREV_EVENTS or len(event.auth_event_ids) > MAX_AUTH_EVENTS:
        raise InvalidJoinAnswer("the make_join template names too many events")
    if not event.prev_event_ids:
        raise InvalidJoinAnswer("the make_join template has no prev_events")
    return pdu


def check_join_answer(
    join: Event,
    state_ids: Sequence[str],
    received: Sequence[Event],
) -> CheckedJoin:
    """Check 4 for the events of a `send_join` answer and for the join itself.

    Args:
        join: our join event.
        state_ids: ids of the events that the resident named as state before it.
        received: the events that passed checks 1 to 3, state and auth chain.

    Raises:
        InvalidJoinAnswer: the answer has no usable create event, has two events for one state
            entry, or does not authorise the join.
    """
    order = AuthOrder()
    verdicts = order.add(received)
    if order.waiting:
        logger.warning("events without their auth events left out", events=len(order.waiting))
    state: dict[StateKey, str] = {}
    for event_id in state_ids:
        verdict = order.verdicts.get(event_id)
        if verdict is None or verdict.rejection is not None:
            continue
        if not verdict.event.is_state:
            raise InvalidJoinAnswer(f"{event_id} is named as state and is not a state event")
        if state.setdefault(verdict.event.key, event_id) != event_id:
            raise InvalidJoinAnswer(f"two events are named for the state {verdict.event.key}")
    create_id = state.get(CREATE)
    if create_id is None:
        raise InvalidJoinAnswer("the state has no create event that passes the checks")
    _check_room_version(order.verdicts[create_id].event, join.room_version)
    missing = [event_id for event_id in auth_dependencies(join) if event_id not in order.verdicts]
    if missing:
        raise InvalidJoinAnswer(f"auth events of our join are missing: {', '.join(missing)}")
    refusal = check_against_auth_events(join, order.verdicts)
    if refusal is not None:
        raise InvalidJoinAnswer(f"our join is not allowed by its auth events: {refusal}")
    return CheckedJoin(join, state, verdicts)


def _check_room_version(create: Event, expected: RoomVersion) -> None:
    # A create event without `room_version` is of version 1.
    named = create.content.get("room_version", "1")
    if named != expected.identifier:
        raise InvalidJoinAnswer(
            f"the create event says room version {named!r}, make_join said {expected.identifier}"
        )


class Joiner:
    """Joins rooms for local users, partially where the resident can do that."""

    def __init__(
        self,
        *,
        server_name: str,
        signing_key: SigningKey,
        client: FederationClient,
        verifier: PduVerifier,
        database: Database,
        instance_name: str,
        count_join: Callable[[str], None],
    ) -> None:
        """`count_join(kind)` is told "partial", "full" or "failed"."""
        self._server_name = server_name
        self._signing_key = signing_key
        self._client = client
        self._verifier = verifier
        self._database = database
        self._instance_name = instance_name
        self._count_join = count_join

    async def join(self, request: JoinRequest) -> JoinResult:
        """Joins `request.room_id`, asking the servers in `request.via` in turn.

        A user who is in the room already is not joined again.

        Raises:
            JoinFailed: no server let the user in, with what each answered. Nothing was stored.
        """
        existing = await self._database.read(_load_existing_join, request)
        if existing is not None:
            return existing
        failures: list[ServerFailure] = []
        for server in request.via:
            try:
                checked = await self._join_via(server, request)
            except FederationError as error:
                logger.warning("join failed", server=server, error=str(error))
                failures.append(ServerFailure(server, str(error)))
                continue
            await self._database.run(
                _store_join, checked, server, self._server_name, self._instance_name
            )
            self._count_join("partial" if checked.partial else "full")
            return JoinResult(
                request.room_id,
                checked.join.event_id,
                checked.partial,
                len(checked.state),
                len(checked.servers),
            )
        self._count_join("failed")
        reasons = "; ".join(str(failure) for failure in failures)
        raise JoinFailed(f"{request.user_id} could not join {request.room_id}: {reasons}")

    async def _join_via(self, server: str, request: JoinRequest) -> CheckedJoin:
        template = await self._client.make_join(server, request.room_id, request.user_id)
        version = get_room_version(template.room_version)
        unsigned = build_join_event(
            template,
            request,
            origin_server_ts=int(time.time() * 1000),
            random_id=random_localpart(),
        )
        pdu = sign_event(unsigned, version, self._server_name, self._signing_key)
        _check_own_join(pdu, version)
        own = Event.from_pdu(pdu, version.identifier)
        answer = await self._client.send_join(
            server, request.room_id, own.event_id, pdu, omit_members=True
        )
        join, received, state_ids = await self._verify(own, answer, server)
        checked = await asyncio.to_thread(check_join_answer, join, state_ids, received)
        checked.partial = answer.members_omitted
        checked.servers = list(dict.fromkeys((server, *answer.servers_in_room)))
        return checked

    async def _verify(
        self, own: Event, answer: SendJoin, server: str
    ) -> tuple[Event, list[Event], list[str]]:
        """Checks 1 to 3 on the answer: our join as returned, the other events, the state's ids."""
        version = own.room_version
        join_pdu = dict(own.pdu)
        if answer.event is not None:
            join_pdu = _with_signatures_of(join_pdu, answer.event)
        join_event = Event.from_pdu(join_pdu, version.identifier, event_id=own.event_id)
        raw_join = RawPdu(join_pdu, join_event.json)
        pdus = [raw_join, *answer.auth_chain, *answer.state]
        checked = await self._verifier.verify(
            pdus, room_version=version.identifier, room_id=own.room_id
        )
        for dropped in checked.dropped:
            if dropped.event_id == own.event_id:
                raise InvalidJoinAnswer(f"our join does not pass the checks: {dropped.reason}")
        checked.log_dropped(server)
        received = [event for event in checked.events if event.event_id != own.event_id]
        in_state = checked.event_ids[1 + len(answer.auth_chain) :]
        state_ids = [event_id for event_id in in_state if event_id not in (None, own.event_id)]
        return join_event, received, state_ids


def _check_own_join(pdu: dict[str, Any], version: RoomVersion) -> None:
    """What we would not accept from others (check 1) we do not send either."""
    try:
        check_format(pdu, version, set())
        if version.strict_canonical_json:
            check_strict(pdu)
    except InvalidEvent as error:
        raise InvalidJoinAnswer(f"the make_join template is malformed: {error}") from None


def _with_signatures_of(pdu: dict[str, Any], returned: RawPdu) -> dict[str, Any]:
    """Our join with the signatures that the resident added to it (restricted joins, MSC3083)."""
    signatures = returned.pdu.get("signatures")
    if not isinstance(signatures, dict):
        return pdu
    return {**pdu, "signatures": {**signatures, **pdu["signatures"]}}


def _load_existing_join(connection: Connection, request: JoinRequest) -> JoinResult | None:
    """The join that `request` asks for, if the user is in the room already.

    Raises:
        JoinFailed: the room is fully stated here; a partial join would undo that.
    """
    join_event_id = current_state.load_joined_event(connection, request.room_id, request.user_id)
    partial = partial_state.load_partial_room(connection, request.room_id) is not None
    if join_event_id is not None:
        return JoinResult(
            request.room_id,
            join_event_id,
            partial,
            current_state.count_entries(connection, request.room_id),
            len(partial_state.load_partial_servers(connection, request.room_id)),
        )
    _refuse_if_fully_stated(connection, request.room_id, request.user_id)
    return None


def _refuse_if_fully_stated(connection: Connection, room_id: str, user_id: str) -> None:
    memberships = current_state.load_local_memberships(connection, room_id)
    partial = partial_state.load_partial_room(connection, room_id) is not None
    if not partial and "join" in memberships.values():
        raise JoinFailed(
            f"{room_id} is fully stated here, so {user_id} does not need a partial join: join "
            "them the ordinary way"
        )


def _store_join(
    connection: Connection,
    checked: CheckedJoin,
    joined_via: str,
    own_server_name: str,
    instance_name: str,
) -> None:
    """Stores a join and everything that came with it, in the caller's transaction.

    When another local user has joined the room partially before, what that join brought is kept:
    this one adds its member and the servers it learned of.

    Raises:
        JoinFailed: the room has become fully stated meanwhile.
    """
    now_ms = int(time.time() * 1000)
    join = checked.join
    room_id = join.room_id
    create = checked.state[CREATE]
    creator = next(v.event.sender for v in checked.verdicts if v.event.event_id == create)
    rooms.insert_room(connection, room_id, join.room_version.identifier, creator)
    rooms.lock_room(connection, room_id)
    # Meanwhile a resync may have ended, or another user may have joined or left.
    _refuse_if_fully_stated(connection, room_id, join.sender)
    already_partial = partial_state.load_partial_room(connection, room_id) is not None
    events.insert_outliers(
        connection,
        [verdict.event for verdict in checked.verdicts],
        rejections={
            verdict.event.event_id: verdict.rejection
            for verdict in checked.verdicts
            if verdict.rejection is not None
        },
        instance_name=instance_name,
        received_ts=now_ms,
    )
    known = current_state.load_current_state(connection, room_id) if already_partial else {}
    # What this resident left out, the other members of ours among it, is known from before.
    current = {**checked.state, **known}
    before = state_groups.create_state_group(
        connection,
        room_id,
        join.event_id,
        prev_group=None,
        delta=current if checked.partial else checked.state,
    )
    after = state_groups.create_state_group(
        connection, room_id, join.event_id, prev_group=before, delta={join.key: join.event_id}
    )
    events.insert_event(
        connection,
        join,
        state_group=after,
        rejection_reason=None,
        instance_name=instance_name,
        received_ts=now_ms,
    )
    current_state.replace_current_state(
        connection,
        room_id,
        {**current, join.key: join.event_id},
        instance_name=instance_name,
        own_server=own_server_name,
    )
    if not checked.partial:
        return
    partial_state.insert_partial_room(
        connection,
        room_id,
        joined_via=joined_via,
        servers=checked.servers,
        join_event_id=join.event_id,
    )
    partial_state.insert_partial_events(connection, room_id, [join.event_id])
    jobs.create_job(connection, room_id, now_ms=now_ms)
