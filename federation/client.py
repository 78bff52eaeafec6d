"""The federation API as a caller: joins, state, events.

Every answer comes from a stranger. What is returned here has the right shape and nothing more:
the events in it are `RawPdu`s that `federation.checks` has yet to judge.

Source: server-server API, "Joining Rooms", "Retrieving events", "Backfilling and retrieving
missing events"; MSC3706 for the partial state fields under their old names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from federation.client_answers import (
    OLD_PARTIAL_STATE,
    OLD_SERVERS_IN_ROOM,
    MakeJoin,
    SendJoin,
    StateIds,
    check_template,
    event_ids,
    members_omitted,
    require_arrays,
    servers_in_room,
    signed_join,
)
from federation.errors import InvalidResponse, UnknownRoomVersion
from federation.room_versions import ROOM_VERSIONS
from federation.signing import SigningKey
from federation.streaming import (
    ParserLimits,
    PduBatch,
    RawPdu,
    ResponseParser,
    parse_chunks,
    unobserved,
)
from federation.transport import Timeouts, Transport, read_object
from federation.x_matrix import authorization_header

__all__ = [
    "ClientLimits",
    "ClientTimeouts",
    "FederationClient",
    "MakeJoin",
    "PduBatch",
    "RawPdu",
    "SendJoin",
    "StateIds",
]

_MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long a silent server is waited for.

    Attributes:
        small: answers that need no work.
        large: answers that a resident may have to resolve state for, minutes in a large room.
    """

    small: Timeouts = field(default_factory=lambda: Timeouts(first_byte=60.0))
    large: Timeouts = field(default_factory=lambda: Timeouts(first_byte=600.0))


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The largest answers that are read, in bytes, and the longest lists.

    Attributes:
        room_bytes: `/state` and `/send_join`.
        ids_bytes: `/state_ids`.
        chain_bytes: `/event_auth` and `/get_missing_events`.
        event_bytes: `/make_join` and `/event`.
        servers: names kept of `servers_in_room`.
        events: events and ids in one answer.
    """

    room_bytes: int = 500 * _MEGABYTE
    ids_bytes: int = 100 * _MEGABYTE
    chain_bytes: int = 100 * _MEGABYTE
    event_bytes: int = _MEGABYTE
    servers: int = 50_000
    events: int = 2_000_000


class FederationClient:
    """Asks other homeservers, in the name of ours.

    All methods raise:
        TransportError: no answer; `InvalidResponse` for one that cannot be used.
        HttpError: the server refuses.

    Args:
        server_name: our name.
        signing_key: our key, which signs every request.
        transport: finds the servers and carries the requests.
    """

    def __init__(
        self,
        server_name: str,
        signing_key: SigningKey,
        transport: Transport,
        *,
        timeouts: ClientTimeouts | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        self._server_name = server_name
        self._signing_key = signing_key
        self._transport = transport
        self._timeouts = timeouts or ClientTimeouts()
        self._limits = limits or ClientLimits()

    async def make_join(self, destination: str, room_id: str, user_id: str) -> MakeJoin:
        """Asks for a join event to sign.

        Raises:
            UnknownRoomVersion: the room has a version that we do not know.
        """
        target = _target(
            "v1/make_join", room_id, user_id, query=[("ver", version) for version in ROOM_VERSIONS]
        )
        answer = await self._transport.get_json(
            destination,
            target,
            max_bytes=self._limits.event_bytes,
            timeouts=self._timeouts.small,
            authorization=self._authorization(destination, "GET", target, None),
        )
        room_version = answer.get("room_version", "1")
        if not isinstance(room_version, str):
            raise InvalidResponse(destination, "`room_version` is not a string")
        if room_version not in ROOM_VERSIONS:
            raise UnknownRoomVersion(room_version[:100])
        event = answer.get("event")
        if not isinstance(event, dict):
            raise InvalidResponse(destination, "the answer has no `event`")
        check_template(destination, event, room_id, user_id)
        return MakeJoin(room_version, event)

    async def send_join(
        self,
        destination: str,
        room_id: str,
        event_id: str,
        pdu: Mapping[str, Any],
        *,
        omit_members: bool,
    ) -> SendJoin:
        """Hands our signed join to a resident server and takes the room's state from it.

        Not repeated when it fails half way: the resident may have accepted the join.
        """
        parser = self._parser(
            destination,
            self._limits.room_bytes,
            pdu_arrays=("state", "auth_chain"),
            string_arrays=("servers_in_room", OLD_SERVERS_IN_ROOM),
            fields=("event", "members_omitted", OLD_PARTIAL_STATE),
        )
        target = _target(
            "v2/send_join",
            room_id,
            event_id,
            query=[("omit_members", "true")] if omit_members else [],
        )
        pdus = await self._collect("PUT", target, parser, self._timeouts.large, content=pdu)
        require_arrays(parser, "state", "auth_chain")
        omitted = members_omitted(parser)
        servers, dropped = servers_in_room(parser, self._limits.servers)
        if omitted and not servers:
            raise InvalidResponse(
                destination, "members are left out, but `servers_in_room` names no server"
            )
        return SendJoin(
            event=signed_join(parser),
            state=pdus["state"],
            auth_chain=pdus["auth_chain"],
            members_omitted=omitted,
            servers_in_room=servers,
            dropped=dropped,
        )

    async def state_ids(self, destination: str, room_id: str, event_id: str) -> StateIds:
        """The ids of the room's state before an event, and of that state's auth chain."""
        parser = self._parser(
            destination, self._limits.ids_bytes, string_arrays=("pdu_ids", "auth_chain_ids")
        )
        target = _target("v1/state_ids", room_id, query=[("event_id", event_id)])
        await self._collect("GET", target, parser, self._timeouts.large)
        require_arrays(parser, "pdu_ids", "auth_chain_ids")
        # Tens of milliseconds for a large room.
        return await asyncio.to_thread(
            lambda: StateIds(event_ids(parser, "pdu_ids"), event_ids(parser, "auth_chain_ids"))
        )

    async def state(
        self,
        destination: str,
        room_id: str,
        event_id: str,
        *,
        batch_size: int = 1000,
        observe_parsing: Callable[[float], None] = unobserved,
    ) -> AsyncGenerator[PduBatch, None]:
        """The room's state before an event, and its auth chain, as they arrive.

        An asynchronous generator: whoever stops early closes it (`contextlib.aclosing`).

        Args:
            observe_parsing: see `federation.streaming.parse_chunks`.

        Yields:
            `(section, pdus)`, section being "pdus" for the state or "auth_chain". If it raises
            in the middle, the answer was incomplete and what came before is not the whole state.
        """
        parser = self._parser(
            destination, self._limits.room_bytes, pdu_arrays=("pdus", "auth_chain")
        )
        target = _target("v1/state", room_id, query=[("event_id", event_id)])
        batches = self._stream(
            "GET",
            target,
            parser,
            self._timeouts.large,
            batch_size=batch_size,
            observe_parsing=observe_parsing,
        )
        async with aclosing(batches):
            async for batch in batches:
                yield batch
        require_arrays(parser, "pdus", "auth_chain")

    async def event(self, destination: str, event_id: str) -> RawPdu:
        """One event. That it is the one asked for is for the caller to check."""
        parser = self._parser(destination, self._limits.event_bytes, pdu_arrays=("pdus",))
        target = _target("v1/event", event_id)
        events = (await self._collect("GET", target, parser, self._timeouts.small))["pdus"]
        if len(events) != 1:
            raise InvalidResponse(destination, f"`pdus` holds {len(events)} events instead of one")
        return events[0]

    async def event_auth(self, destination: str, room_id: str, event_id: str) -> list[RawPdu]:
        """The whole auth chain of an event."""
        parser = self._parser(destination, self._limits.chain_bytes, pdu_arrays=("auth_chain",))
        target = _target("v1/event_auth", room_id, event_id)
        pdus = await self._collect("GET", target, parser, self._timeouts.large)
        require_arrays(parser, "auth_chain")
        return pdus["auth_chain"]

    async def get_missing_events(
        self,
        destination: str,
        room_id: str,
        earliest: Collection[str],
        latest: Collection[str],
        limit: int,
        min_depth: int,
    ) -> list[RawPdu]:
        """Events between `earliest` (which we have) and `latest`, at most `limit`."""
        parser = self._parser(destination, self._limits.chain_bytes, pdu_arrays=("events",))
        content = {
            "earliest_events": list(earliest),
            "latest_events": list(latest),
            "limit": limit,
            "min_depth": min_depth,
        }
        # A POST, but one that only asks.
        pdus = await self._collect(
            "POST",
            _target("v1/get_missing_events", room_id),
            parser,
            self._timeouts.small,
            content=content,
            repeatable=True,
        )
        require_arrays(parser, "events")
        return pdus["events"][:limit]

    async def send_transaction(
        self,
        destination: str,
        transaction_id: str,
        pdus: Sequence[Mapping[str, Any]],
        *,
        now_ms: int,
    ) -> dict[str, str]:
        """Sends events. The same transaction may be sent again under the same id.

        Args:
            pdus: at most 50.
            now_ms: `origin_server_ts`.

        Returns:
            The events that the server refused, with its words. Source: "Transactions".
        """
        content = {
            "origin": self._server_name,
            "origin_server_ts": now_ms,
            "pdus": list(pdus),
            "edus": [],
        }
        target = _target("v1/send", transaction_id)
        async with self._transport.request(
            destination,
            "PUT",
            target,
            timeouts=self._timeouts.small,
            content=content,
            authorization=self._authorization(destination, "PUT", target, content),
            repeatable=True,
        ) as response:
            answer = await read_object(destination, response, self._limits.event_bytes)
        results = answer.get("pdus")
        if not isinstance(results, dict):
            return {}
        return {
            event_id: str(result["error"])[:500]
            for event_id, result in results.items()
            if isinstance(result, dict) and "error" in result
        }

    def _parser(
        self,
        destination: str,
        body_bytes: int,
        *,
        pdu_arrays: Collection[str] = (),
        string_arrays: Collection[str] = (),
        fields: Collection[str] = (),
    ) -> ResponseParser:
        return ResponseParser(
            destination,
            pdu_arrays=pdu_arrays,
            string_arrays=string_arrays,
            fields=fields,
            limits=ParserLimits(body_bytes=body_bytes, elements=self._limits.events),
        )

    def _authorization(
        self, destination: str, method: str, target: str, content: Mapping[str, Any] | None
    ) -> str:
        return authorization_header(
            self._server_name, self._signing_key, destination, method, target, content
        )

    async def _collect(
        self,
        method: str,
        target: str,
        parser: ResponseParser,
        timeouts: Timeouts,
        *,
        content: Mapping[str, Any] | None = None,
        repeatable: bool | None = None,
    ) -> dict[str, list[RawPdu]]:
        """All events of an answer by array; the parser has the rest of it."""
        collected: dict[str, list[RawPdu]] = {name: [] for name in parser.pdu_arrays}
        batches = self._stream(
            method, target, parser, timeouts, content=content, repeatable=repeatable
        )
        async with aclosing(batches):
            async for section, pdus in batches:
                collected[section].extend(pdus)
        return collected

    async def _stream(
        self,
        method: str,
        target: str,
        parser: ResponseParser,
        timeouts: Timeouts,
        *,
        content: Mapping[str, Any] | None = None,
        repeatable: bool | None = None,
        batch_size: int = 1000,
        observe_parsing: Callable[[float], None] = unobserved,
    ) -> AsyncGenerator[PduBatch, None]:
        destination = parser.destination
        async with self._transport.request(
            destination,
            method,
            target,
            timeouts=timeouts,
            content=content,
            authorization=self._authorization(destination, method, target, content),
            repeatable=repeatable,
        ) as response:
            pieces = response.pieces(parser.limits.body_bytes)
            batches = parse_chunks(
                parser, pieces, batch_size=batch_size, observe_parsing=observe_parsing
            )
            async with aclosing(pieces), aclosing(batches):
                async for batch in batches:
                    yield batch


def _target(endpoint: str, *segments: str, query: Sequence[tuple[str, str]] = ()) -> str:
    """Path and query of a federation endpoint, percent-encoded."""
    path = "/".join(
        ["/_matrix/federation", endpoint, *(quote(segment, safe="") for segment in segments)]
    )
    return f"{path}?{urlencode(query, quote_via=quote, safe='')}" if query else path
