"""The federation client against servers that answer whatever the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from federation.client import ClientLimits, ClientTimeouts, FederationClient, RawPdu
from federation.errors import HttpError, InvalidResponse, TransportError, UnknownRoomVersion
from federation.https import Timeouts
from federation.signing import generate_signing_key
from federation.tls import client_tls_context
from federation.transport import RetryPolicy, open_transport
from federation.x_matrix import parse_authorization, verify_request
from tests.integration.federation.loopback import LOOPBACK, Certificates, https_server

ROOM = "!r/o om:far.test"
ROOM_ENCODED = "%21r%2Fo%20om%3Afar.test"
EVENT_ID = "$ev/ent+1"
USER = "@al/ice:us.test"
US = "us.test"
KEY = generate_signing_key()

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Resident:
    """A homeserver that gives one answer to everything, and remembers the requests."""

    def __init__(self, client: FederationClient, name: str) -> None:
        self.client = client
        self.name = name
        self.answer: Answer = plain({})
        self.requests: list[tuple[str, str, str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.json() if request.can_read_body else None
        header = request.headers["Authorization"]
        self.requests.append((request.method, request.raw_path, header, content))
        return await self.answer(request)


@pytest.fixture
async def resident(certificates: Certificates) -> AsyncIterator[Resident]:
    tls, trusted = certificates.make("localhost")
    transport = open_transport(
        tls=client_tls_context(ca_path=trusted),
        ip_range_allowlist=LOOPBACK,
        retries=RetryPolicy(backoff=0.01),
    )
    client = FederationClient(
        US,
        KEY,
        transport,
        timeouts=ClientTimeouts(
            small=Timeouts(first_byte=5, idle=1), large=Timeouts(first_byte=5, idle=0.3)
        ),
        limits=ClientLimits(room_bytes=2_000_000, servers=100, events=30_000),
    )
    app = web.Application()
    made: Resident

    async def handle(request: web.Request) -> web.StreamResponse:
        return await made.handle(request)

    app.router.add_route("*", "/{path:.*}", handle)
    try:
        async with https_server(app, tls) as port, asyncio.timeout(30):
            made = Resident(client, f"localhost:{port}")
            yield made
    finally:
        await transport.close()


def plain(answer: Any, status: int = 200) -> Answer:
    return text(json.dumps(answer), status)


def text(body: str | bytes, status: int = 200) -> Answer:
    async def respond(_: web.Request) -> web.StreamResponse:
        data = body.encode() if isinstance(body, str) else body
        return web.Response(body=data, status=status, content_type="application/json")

    return respond


def streamed(*pieces: bytes | float) -> Answer:
    """Sends bytes, sleeps for numbers; a negative number breaks the connection."""

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            if isinstance(piece, bytes):
                await response.write(piece)
            elif piece < 0:
                assert request.transport is not None
                request.transport.abort()
            else:
                await asyncio.sleep(piece)
        return response

    return respond


def member(n: int) -> dict[str, Any]:
    return {"type": "m.room.member", "state_key": f"@u{n}:far.test", "content": {}, "depth": n}


TEMPLATE = {
    "type": "m.room.member",
    "room_id": ROOM,
    "sender": USER,
    "state_key": USER,
    "content": {"membership": "join"},
    "auth_events": [],
}


# -- requests


@pytest.mark.parametrize(
    ("call", "method", "target", "content", "answer"),
    [
        (
            lambda c, s: c.make_join(s, ROOM, USER),
            "GET",
            f"/_matrix/federation/v1/make_join/{ROOM_ENCODED}/%40al%2Fice%3Aus.test?"
            + "&".join(f"ver={n}" for n in range(1, 13)),
            None,
            {"room_version": "10", "event": TEMPLATE},
        ),
        (
            lambda c, s: c.send_join(s, ROOM, EVENT_ID, {"b": [1], "a": "é"}, omit_members=True),
            "PUT",
            f"/_matrix/federation/v2/send_join/{ROOM_ENCODED}/%24ev%2Fent%2B1?omit_members=true",
            {"b": [1], "a": "é"},
            {"state": [], "auth_chain": []},
        ),
        (
            lambda c, s: c.send_join(s, ROOM, EVENT_ID, {}, omit_members=False),
            "PUT",
            f"/_matrix/federation/v2/send_join/{ROOM_ENCODED}/%24ev%2Fent%2B1",
            {},
            {"state": [], "auth_chain": []},
        ),
        (
            lambda c, s: c.state_ids(s, ROOM, EVENT_ID),
            "GET",
            f"/_matrix/federation/v1/state_ids/{ROOM_ENCODED}?event_id=%24ev%2Fent%2B1",
            None,
            {"pdu_ids": [], "auth_chain_ids": []},
        ),
        (
            lambda c, s: collect(c.state(s, ROOM, EVENT_ID)),
            "GET",
            f"/_matrix/federation/v1/state/{ROOM_ENCODED}?event_id=%24ev%2Fent%2B1",
            None,
            {"pdus": [], "auth_chain": []},
        ),
        (
            lambda c, s: c.event(s, EVENT_ID),
            "GET",
            "/_matrix/federation/v1/event/%24ev%2Fent%2B1",
            None,
            {"pdus": [{}]},
        ),
        (
            lambda c, s: c.event_auth(s, ROOM, EVENT_ID),
            "GET",
            f"/_matrix/federation/v1/event_auth/{ROOM_ENCODED}/%24ev%2Fent%2B1",
            None,
            {"auth_chain": []},
        ),
        (
            lambda c, s: c.get_missing_events(s, ROOM, ["$a"], ["$b"], 5, 2),
            "POST",
            f"/_matrix/federation/v1/get_missing_events/{ROOM_ENCODED}",
            {"earliest_events": ["$a"], "latest_events": ["$b"], "limit": 5, "min_depth": 2},
            {"events": []},
        ),
    ],
)
async def test_requests_are_as_the_specification_has_them_and_signed(
    resident: Resident, call: Any, method: str, target: str, content: Any, answer: Any
) -> None:
    resident.answer = plain(answer)
    await call(resident.client, resident.name)
    [(seen_method, seen_target, header, seen_content)] = resident.requests
    assert (seen_method, seen_target, seen_content) == (method, target, content)
    signed = parse_authorization(header)
    assert (signed.origin, signed.destination, signed.key_id) == (US, resident.name, KEY.key_id)
    verify_request(signed, KEY.verify_key, resident.name, method, target, content)


async def collect(batches: Any) -> dict[str, list[RawPdu]]:
    found: dict[str, list[RawPdu]] = {}
    async with aclosing(batches):
        async for section, pdus in batches:
            found.setdefault(section, []).extend(pdus)
    return found


# -- make_join


async def test_make_join(resident: Resident) -> None:
    resident.answer = plain({"room_version": "12", "event": TEMPLATE})
    assert await resident.client.make_join(resident.name, ROOM, USER) == ("12", TEMPLATE)
    resident.answer = plain({"event": TEMPLATE})
    assert (await resident.client.make_join(resident.name, ROOM, USER)).room_version == "1"


@pytest.mark.parametrize("version", ["13", "", "org.example.x", "1" * 1000])
async def test_make_join_with_an_unknown_room_version(resident: Resident, version: str) -> None:
    resident.answer = plain({"room_version": version, "event": TEMPLATE})
    with pytest.raises(UnknownRoomVersion, match="is not supported"):
        await resident.client.make_join(resident.name, ROOM, USER)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"room_version": 10, "event": TEMPLATE},
        {"event": None},
        {"event": []},
        {"event": {**TEMPLATE, "type": "m.room.power_levels"}},
        {"event": {**TEMPLATE, "room_id": "!other:far.test"}},
        {"event": {**TEMPLATE, "sender": "@bob:us.test"}},
        {"event": {**TEMPLATE, "state_key": "@bob:us.test"}},
        {"event": {**TEMPLATE, "content": {"membership": "ban"}}},
        {"event": {**TEMPLATE, "content": []}},
    ],
)
async def test_a_template_for_anything_but_our_join_is_refused(
    resident: Resident, answer: Any
) -> None:
    resident.answer = plain(answer)
    with pytest.raises(InvalidResponse):
        await resident.client.make_join(resident.name, ROOM, USER)


# -- send_join


async def send_join(resident: Resident, answer: Any) -> Any:
    resident.answer = answer if callable(answer) else plain(answer)
    return await resident.client.send_join(resident.name, ROOM, "$join", {}, omit_members=True)


@pytest.mark.parametrize(
    ("omitted", "servers"),
    [
        ("members_omitted", "servers_in_room"),
        ("org.matrix.msc3706.partial_state", "org.matrix.msc3706.servers_in_room"),
        ("members_omitted", "org.matrix.msc3706.servers_in_room"),
    ],
)
async def test_send_join_with_members_left_out(
    resident: Resident, omitted: str, servers: str
) -> None:
    answer = {
        "event": {"type": "m.room.member", "n": 1},
        "state": [member(1), member(2)],
        "auth_chain": [member(3)],
        "origin": "far.test",
        omitted: True,
        servers: ["far.test", "a.test:443", "[::1]:8448", "far.test"],
    }
    joined = await send_join(resident, answer)
    assert joined.members_omitted is True
    assert joined.servers_in_room == ["far.test", "a.test:443", "[::1]:8448"]
    assert [raw.pdu for raw in joined.state] == [member(1), member(2)]
    assert [raw.json_text for raw in joined.auth_chain] == [json.dumps(member(3))]
    assert joined.event == (answer["event"], json.dumps(answer["event"]))
    assert joined.dropped == {}


async def test_a_resident_that_answers_with_full_state(resident: Resident) -> None:
    joined = await send_join(resident, {"state": [member(1)], "auth_chain": []})
    assert joined.members_omitted is False
    assert joined.servers_in_room == []
    assert joined.event is None
    explicit = {"state": [], "auth_chain": [], "members_omitted": False, "event": None}
    assert (await send_join(resident, explicit)).members_omitted is False


async def test_absurd_servers_in_room_are_bounded(resident: Resident) -> None:
    names: list[Any] = [f"s{n}.test" for n in range(150)]
    absurd = [
        "",
        "not a name",
        "x" * 10_000,
        5,
        None,
        {"a": 1},
        ["far.test"],
        "a.test:1:2",
        "é.test",
    ]
    joined = await send_join(
        resident,
        {"state": [], "auth_chain": [], "members_omitted": True, "servers_in_room": absurd + names},
    )
    assert joined.servers_in_room == names[:100]
    assert joined.dropped == {"servers_in_room": len(absurd) + 50}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({}, "no `state`"),
        ({"state": []}, "no `auth_chain`"),
        ({"auth_chain": []}, "no `state`"),
        ({"state": {}, "auth_chain": []}, "`state` is not an array"),
        ({"state": ["$id"], "auth_chain": []}, "not an event"),
        ({"state": [], "auth_chain": [], "members_omitted": "yes"}, "not true or false"),
        ({"state": [], "auth_chain": [], "members_omitted": True}, "names no server"),
        (
            {"state": [], "auth_chain": [], "members_omitted": True, "servers_in_room": ["?"]},
            "names no server",
        ),
        ({"state": [], "auth_chain": [], "servers_in_room": "far.test"}, "is not an array"),
        ({"state": [], "auth_chain": [], "event": "$join"}, "`event` is not an object"),
        ([200, {"state": [], "auth_chain": []}], "not a JSON object"),
        (text("<html>"), "not a JSON object"),
        (text(""), "cut off or not JSON"),
        (text('{"state":[],"auth_chain":[{"a":1}'), "cut off or not JSON"),
        (text('{"state":[],"auth_chain":[],"state":[]}'), "comes twice"),
        (text('{"state":[{"a":NaN}],"auth_chain":[]}'), "NaN is not JSON"),
        (text(b'{"state":[{"a":"\xff"}],"auth_chain":[]}'), "not UTF-8"),
        (text('{"state":[' + "{}," * 40_000 + '{}],"auth_chain":[]}'), "more than 30000 things"),
        (text('{"state":["' + "x" * 400_000 + '"]}'), "longer than 262144 characters"),
        (text('{"x":"' + "y" * 2_000_001), "larger than 2000000 bytes"),
    ],
)
async def test_send_join_answers_that_cannot_be_used(
    resident: Resident, answer: Any, reason: str
) -> None:
    with pytest.raises(InvalidResponse, match=reason):
        await send_join(resident, answer)
    assert len(resident.requests) == 1


async def test_events_that_no_room_accepts_do_not_spoil_the_others(resident: Resident) -> None:
    deep = '{"content":' + "[" * 5000 + "]" * 5000 + "}"
    odd = ['{"depth":1.5}', '{"depth":' + "9" * 5000 + "}", '{"a":1,"a":2}', '{"a":"\\ud800"}']
    body = '{"auth_chain":[],"state":[' + ",".join([*odd, deep, '{"last":1}']) + "]}"
    joined = await send_join(resident, text(body))
    assert [raw.json_text for raw in joined.state] == [*odd, '{"last":1}']
    assert joined.dropped == {"state": 1}


async def test_a_refused_join_says_why(resident: Resident) -> None:
    refusal = {"errcode": "M_UNABLE_TO_GRANT_JOIN", "error": "ask another server"}
    with pytest.raises(HttpError, match="400 M_UNABLE_TO_GRANT_JOIN: ask another server"):
        await send_join(resident, plain(refusal, 400))


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_join_is_handed_in_once(resident: Resident, status: int) -> None:
    with pytest.raises(HttpError):
        await send_join(resident, plain({}, status))
    assert len(resident.requests) == 1


# -- state


async def test_state_arrives_in_batches_while_the_resident_still_sends(
    resident: Resident,
) -> None:
    """The first batch is there before the answer has ended."""
    more = asyncio.Event()

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        events = ",".join(json.dumps(member(n)) for n in range(2000))
        await response.write(f'{{"pdus":[{events},'.encode())
        await more.wait()
        await response.write(b'{"n":1}],"auth_chain":[{"n":2}]}')
        return response

    resident.answer = respond
    batches = resident.client.state(resident.name, ROOM, EVENT_ID, batch_size=1000)
    async with aclosing(batches):
        section, first = await anext(batches)
        assert section == "pdus"
        assert [raw.pdu for raw in first] == [member(n) for n in range(len(first))]
        more.set()
        rest = [batch async for batch in batches]
    assert sum(len(pdus) for s, pdus in rest if s == "pdus") == 2001 - len(first)
    assert rest[-1].section == "auth_chain"
    assert [raw.pdu for raw in rest[-1].pdus] == [{"n": 2}]


async def test_state_that_is_cut_off_raises_after_what_came(resident: Resident) -> None:
    events = ",".join(json.dumps(member(n)) for n in range(1500)).encode()
    resident.answer = streamed(b'{"pdus":[' + events, 0.05, -1.0)
    found: list[RawPdu] = []

    async def read() -> None:
        async for batch in resident.client.state(resident.name, ROOM, EVENT_ID, batch_size=500):
            found.extend(batch.pdus)

    with pytest.raises(TransportError, match="cut off after"):
        await read()
    assert 500 <= len(found) <= 1500
    # An answer that has begun is not asked for again behind the caller's back.
    assert len(resident.requests) == 1


async def test_a_resident_that_falls_silent_is_given_up(resident: Resident) -> None:
    resident.answer = streamed(b'{"pdus":[{}', 20.0)
    with pytest.raises(TransportError, match=r"silent for 0\.3 s"):
        await collect(resident.client.state(resident.name, ROOM, EVENT_ID))


async def test_a_slow_but_steady_resident_is_heard_out(resident: Resident) -> None:
    """It takes far longer than the time-out on silence, in all."""
    pieces: list[bytes | float] = [b'{"auth_chain":[],"pdus":[{"n":0}']
    for n in range(1, 12):
        pieces += [0.1, f',{{"n":{n}}}'.encode()]
    resident.answer = streamed(*pieces, b"]}")
    found = await collect(resident.client.state(resident.name, ROOM, EVENT_ID))
    assert [raw.pdu["n"] for raw in found["pdus"]] == list(range(12))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"pdus":[]}', "no `auth_chain`"),
        ('{"auth_chain":[]}', "no `pdus`"),
        ("{}", "no `pdus`"),
        ('{"auth_chain":null,"pdus":[]}', "`auth_chain` is not an array"),
        ("null", "not a JSON object"),
    ],
)
async def test_state_without_its_arrays(resident: Resident, body: str, reason: str) -> None:
    resident.answer = text(body)
    with pytest.raises(InvalidResponse, match=reason):
        await collect(resident.client.state(resident.name, ROOM, EVENT_ID))


async def test_stopping_early_closes_the_connection(resident: Resident) -> None:
    gone = asyncio.Event()

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"pdus":[{}')
        try:
            while True:
                await response.write(b",{}" * 1000)
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    resident.answer = respond
    batches = resident.client.state(resident.name, ROOM, EVENT_ID, batch_size=10)
    async with aclosing(batches):
        await anext(batches)
    async with asyncio.timeout(5):
        await gone.wait()


async def test_state_is_asked_for_again_only_before_it_begins(resident: Resident) -> None:
    answers = iter([plain({}, 503), plain({"pdus": [{}], "auth_chain": []})])

    async def respond(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    resident.answer = respond
    found = await collect(resident.client.state(resident.name, ROOM, EVENT_ID))
    assert len(found["pdus"]) == 1
    assert len(resident.requests) == 2


# -- state_ids


async def test_state_ids(resident: Resident) -> None:
    resident.answer = plain({"pdu_ids": ["$a", "$b", "$a"], "auth_chain_ids": ["$c:far.test"]})
    ids = await resident.client.state_ids(resident.name, ROOM, EVENT_ID)
    assert ids == (["$a", "$b"], ["$c:far.test"])


@pytest.mark.parametrize(
    "ids",
    [["!room:far.test"], [""], ["$"], [5], [None], [["$a"]], ["$" + "x" * 255], {}, "$a", None],
)
async def test_state_ids_that_are_no_event_ids(resident: Resident, ids: Any) -> None:
    for answer in ({"pdu_ids": ids, "auth_chain_ids": []}, {"pdu_ids": [], "auth_chain_ids": ids}):
        resident.answer = plain(answer)
        with pytest.raises(InvalidResponse):
            await resident.client.state_ids(resident.name, ROOM, EVENT_ID)


async def test_forbidden_state_ids_are_told_apart(resident: Resident) -> None:
    resident.answer = plain({"errcode": "M_FORBIDDEN", "error": "not in the room"}, 403)
    with pytest.raises(HttpError) as raised:
        await resident.client.state_ids(resident.name, ROOM, EVENT_ID)
    assert (raised.value.status, raised.value.errcode) == (403, "M_FORBIDDEN")


# -- single events


async def test_event(resident: Resident) -> None:
    resident.answer = text('{"origin":"far.test","origin_server_ts":1,"pdus":[{"a": 1.0}]}')
    assert await resident.client.event(resident.name, "$x") == ({"a": 1.0}, '{"a": 1.0}')


@pytest.mark.parametrize("answer", [{}, {"pdus": []}, {"pdus": [{}, {}]}, {"pdus": {}}, [], None])
async def test_event_must_be_one(resident: Resident, answer: Any) -> None:
    resident.answer = plain(answer)
    with pytest.raises(InvalidResponse):
        await resident.client.event(resident.name, "$x")


async def test_event_auth(resident: Resident) -> None:
    resident.answer = plain({"auth_chain": [member(1), member(2)]})
    chain = await resident.client.event_auth(resident.name, ROOM, "$x")
    assert [raw.pdu for raw in chain] == [member(1), member(2)]
    resident.answer = plain({})
    with pytest.raises(InvalidResponse, match="no `auth_chain`"):
        await resident.client.event_auth(resident.name, ROOM, "$x")


async def test_get_missing_events_takes_no_more_than_it_asked_for(resident: Resident) -> None:
    resident.answer = plain({"events": [member(n) for n in range(50)]})
    events = await resident.client.get_missing_events(resident.name, ROOM, [], ["$x"], 10, 0)
    assert [raw.pdu for raw in events] == [member(n) for n in range(10)]


async def test_get_missing_events_is_safe_to_repeat(resident: Resident) -> None:
    answers = iter([plain({}, 502), plain({"events": []})])

    async def respond(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    resident.answer = respond
    assert await resident.client.get_missing_events(resident.name, ROOM, [], ["$x"], 10, 0) == []
    assert len(resident.requests) == 2
