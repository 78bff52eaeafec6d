"""What local users do in rooms: events are made from the room's state, stored, and queued.

In partial state our view of the room may be wrong, and the event may be rejected by others or, by
the resync, here; see the documentation of faster joins, "Creating events during a partial join".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog
from sqlalchemy import Connection

from federation.canonical_json import check_strict
from federation.errors import InvalidEvent
from federation.event_format import check_format
from federation.events import MAX_PREV_EVENTS, Event, StateKey
from federation.hashing import reference_hash
from federation.identifiers import domain_of
from federation.room_versions import EventFormat, RoomVersion, get_room_version
from federation.signing import SigningKey, encode_base64, random_localpart, sign_event
from resync.auth import auth_types, select_auth_events
from resync.errors import ResyncError
from resync.outliers import Verdict, check_against_auth_events
from resync.receive.receiver import NotInRoom, Receiver
from resync.walk.recheck import check_against_state, resolve_states
from resync.walk.states import RoomStates
from resync.walk.verdict_cache import VerdictCache
from storage import (
    current_state,
    events,
    extremities,
    history,
    inbound,
    outgoing,
    partial_state,
    state_groups,
)
from storage.database import Database

logger = structlog.get_logger(__name__)

MEMBER = "m.room.member"

AfterStoring = Callable[[Connection], None]


class EventNotAllowed(ResyncError):
    """The room, as this server knows it, does not let the user do that."""


class EventCreator:
    """Makes events of local users."""

    def __init__(
        self,
        *,
        server_name: str,
        signing_key: SigningKey,
        database: Database,
        receiver: Receiver,
        wake_sender: Callable[[], None],
    ) -> None:
        """`wake_sender` is called when an event has been queued for other servers."""
        self._server_name = server_name
        self._signing_key = signing_key
        self._database = database
        self._receiver = receiver
        self._wake_sender = wake_sender

    async def send(
        self,
        room_id: str,
        user_id: str,
        event_type: str,
        content: Mapping[str, Any],
        *,
        state_key: str | None = None,
        after_storing: AfterStoring = lambda connection: None,
    ) -> Event:
        """Makes an event, stores it and queues it for the servers known to be in the room.

        Its auth events come from the state of the room, partial or not. The membership of the
        target of an invite, kick or ban may be missing there; the event then goes without it.

        Args:
            after_storing: runs in the transaction that stores the event.

        Raises:
            NotInRoom: no local user is in the room.
            EventNotAllowed: the user is not in the room, or may not do that.
        """
        if domain_of(user_id) != self._server_name:
            raise EventNotAllowed(f"{user_id} is not a user of {self._server_name}")
        event, refusal = await asyncio.to_thread(
            self._create, room_id, user_id, event_type, dict(content), state_key
        )
        if refusal is not None:
            raise EventNotAllowed(f"{user_id} may not send {event_type} to {room_id}: {refusal}")

        def finish(connection: Connection) -> None:
            servers = set(partial_state.load_partial_servers(connection, room_id))
            servers.update(history.load_joined_servers(connection, room_id))
            if event_type == MEMBER and state_key is not None:
                servers.add(domain_of(state_key))
            servers.discard(self._server_name)
            outgoing.queue_event(
                connection, room_id, event.event_id, servers, now_ms=int(time.time() * 1000)
            )
            after_storing(connection)

        received = await self._receiver.take_in(room_id, [event], after_storing=finish)
        if event.event_id not in received.stored:
            reason = received.deferred.get(event.event_id, "the room changed")
            raise EventNotAllowed(f"the event could not be stored: {reason}")
        self._wake_sender()
        return event

    async def set_profile(self, room_id: str, user_id: str, profile: Mapping[str, Any]) -> Event:
        """Changes what a joined local user's membership says of them, such as `displayname`."""
        content = await self._database.read(_member_content, room_id, user_id)
        if content is None or content.get("membership") != "join":
            raise EventNotAllowed(f"{user_id} is not in {room_id}")
        # Who authorised the join says nothing about a change of profile.
        content.pop("join_authorised_via_users_server", None)
        return await self.send(room_id, user_id, MEMBER, {**content, **profile}, state_key=user_id)

    def _create(
        self,
        room_id: str,
        user_id: str,
        event_type: str,
        content: dict[str, Any],
        state_key: str | None,
    ) -> tuple[Event, str | None]:
        """Runs in a thread: the signed event, and why the room refuses it."""
        read = self._database.read_sync
        room = read(inbound.load_receiving_rooms, [room_id]).get(room_id)
        if room is None:
            raise NotInRoom(room_id)
        version = get_room_version(room.room_version)
        cache = VerdictCache(self._database)
        latest = read(extremities.load_forward_extremities, room_id)
        stored = read(events.load_events, latest)
        latest = sorted(stored, key=lambda i: -stored[i].event.depth)[:MAX_PREV_EVENTS]
        states = RoomStates()
        groups = read(state_groups.load_event_state_groups, latest)
        parents = [
            states.adopt(read(state_groups.load_state, group), event_id, group_id=group)
            for event_id, group in groups.items()
        ]
        before = resolve_states(room.room_version, states, parents, cache, room_id)

        def entry(key: StateKey) -> str | None:
            return states.value(before, key)

        if entry(StateKey(MEMBER, user_id)) is None:
            raise EventNotAllowed(f"{user_id} is not in {room_id}")
        pdu: dict[str, Any] = {
            "type": event_type,
            "room_id": room_id,
            "sender": user_id,
            "content": content,
            "depth": min(max((e.event.depth for e in stored.values()), default=0) + 1, 2**53 - 1),
            "origin_server_ts": int(time.time() * 1000),
        }
        if state_key is not None:
            pdu["state_key"] = state_key
        if version.event_format is EventFormat.V1:
            pdu["event_id"] = f"${random_localpart()}:{self._server_name}"
        needed = auth_types(version, event_type, user_id, state_key, content)
        auth_state = {key: event_id for key in needed if (event_id := entry(key)) is not None}
        auth_ids = select_auth_events(version, pdu, auth_state)
        known = read(events.load_events, {*auth_ids, *latest})
        pdu["auth_events"] = _references(version, auth_ids, known)
        pdu["prev_events"] = _references(version, latest, known)
        event = self._sign(pdu, version)
        verdicts = {i: Verdict(e.event, e.rejection_reason) for i, e in known.items()}
        if version.room_id_is_create_hash:
            verdicts |= cache.known(["$" + room_id[1:]])
        refusal = check_against_auth_events(event, verdicts)
        return event, refusal or check_against_state(event, entry, cache)

    def _sign(self, pdu: dict[str, Any], version: RoomVersion) -> Event:
        try:
            signed = sign_event(pdu, version, self._server_name, self._signing_key)
            # What we would not accept from others (check 1) we do not send either.
            check_format(signed, version, set())
            if version.strict_canonical_json:
                check_strict(signed)
            return Event.from_pdu(signed, version.identifier)
        except InvalidEvent as error:
            raise EventNotAllowed(f"the event is malformed: {error}") from None


def _references(
    version: RoomVersion, event_ids: Collection[str], known: Mapping[str, events.StoredEvent]
) -> list[Any]:
    """Event ids as the room version writes them in `auth_events` and `prev_events`."""
    if version.event_format is not EventFormat.V1:
        return list(event_ids)
    return [
        [i, {"sha256": encode_base64(reference_hash(dict(known[i].event.pdu), version))}]
        for i in event_ids
    ]


def _member_content(connection: Connection, room_id: str, user_id: str) -> dict[str, Any] | None:
    key = StateKey(MEMBER, user_id)
    event_id = current_state.load_entries(connection, room_id, [key]).get(key)
    if event_id is None:
        return None
    return dict(events.load_events(connection, [event_id])[event_id].event.content)
