import asyncio
import json
from urllib.parse import quote

import pytest

from resync.admin.api import MAX_BODY_BYTES
from resync.errors import ListenerFailed
from resync.listener import listen
from storage.errors import DatabaseUnavailable

API = "/_resync/admin/v1"
ROOM = "!room:example.com"
JOIN = {"room_id": ROOM, "user_id": "@user:example.com", "via": ["hs1", "hs2"]}


def room_path(room_id: str, rest: str = "") -> str:
    return f"{API}/rooms/{quote(room_id, safe='')}{rest}"


async def refused(request, status: int, errcode: str) -> str:
    """Check that an answer is that error, and return its sentence."""
    got, body = await request
    assert (got, body["errcode"]) == (status, errcode), body
    assert set(body) == {"errcode", "error"}
    assert body["error"]
    return body["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{API}/rooms"),
        ("GET", room_path(ROOM)),
        ("POST", room_path(ROOM, "/resync")),
        ("POST", f"{API}/join"),
        ("POST", f"{API}/leave"),
        ("DELETE", room_path(ROOM)),
        ("GET", f"{API}/nonsense"),
    ],
)
async def test_everything_of_the_api_needs_the_token(admin, method, path):
    admin.rooms.add(ROOM)
    await refused(admin.ask(method, path, token=None), 401, "M_MISSING_TOKEN")
    await refused(admin.ask(method, path, token="wrong"), 401, "M_UNKNOWN_TOKEN")
    await refused(admin.ask(method, path, token="é\udcff"), 401, "M_UNKNOWN_TOKEN")
    await refused(
        admin.ask(method, path, token=None, headers={"Authorization": "Basic YTpi"}),
        401,
        "M_MISSING_TOKEN",
    )
    await refused(
        admin.ask(method, path, token=None, headers={"Authorization": "Bearer "}),
        401,
        "M_MISSING_TOKEN",
    )
    assert admin.joins == []
    assert admin.rooms.rooms[ROOM].state == "backoff"


async def test_pages_of_rooms(admin):
    ids = [f"!{n:03}:example.com" for n in range(7)]
    for room_id in ids:
        admin.rooms.add(room_id)
    seen, path, pages = [], f"{API}/rooms?limit=3", 0
    while path:
        status, body = await admin.ask("GET", path)
        assert status == 200
        seen += [room["room_id"] for room in body["rooms"]]
        token = body.get("next_token")
        path = token and f"{API}/rooms?limit=3&from={quote(token, safe='')}"
        pages += 1
    assert seen == ids
    assert pages == 3


async def test_no_rooms(admin):
    assert await admin.ask("GET", f"{API}/rooms") == (200, {"rooms": []})


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "limit=x", "limit=", "limit=1e3", "limit=²", "from=nope"]
)
async def test_bad_paging(admin, query):
    await refused(admin.ask("GET", f"{API}/rooms?{query}"), 400, "M_INVALID_PARAM")


@pytest.mark.parametrize(
    "room_id", [ROOM, "!a/b:example.com", "!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM"]
)
async def test_one_room(admin, room_id):
    admin.rooms.add(room_id)
    status, body = await admin.ask("GET", room_path(room_id))
    assert status == 200
    assert body["room_id"] == room_id
    assert body["state"] == "backoff"
    assert body["last_error"] == "refused"


async def test_a_room_that_was_never_joined(admin):
    await refused(admin.ask("GET", room_path(ROOM)), 404, "M_NOT_FOUND")
    await refused(admin.ask("GET", room_path(ROOM, "?wait=0")), 404, "M_NOT_FOUND")
    await refused(admin.ask("POST", room_path(ROOM, "/resync")), 404, "M_NOT_FOUND")


@pytest.mark.parametrize("room_id", ["room", "#room:example.com", "!", "!a:b c", "!" + "a" * 300])
async def test_malformed_room_ids(admin, room_id):
    await refused(admin.ask("GET", room_path(room_id)), 400, "M_INVALID_PARAM")
    await refused(admin.ask("POST", room_path(room_id, "/resync")), 400, "M_INVALID_PARAM")


async def test_waiting_ends_when_the_room_is_fully_stated(admin):
    admin.rooms.add(ROOM)
    asking = asyncio.create_task(admin.ask("GET", room_path(ROOM, "?wait=60")))
    await asyncio.wait_for(admin.rooms.waiting.wait(), 10)
    assert not asking.done()
    admin.rooms.finish(ROOM)
    status, body = await asyncio.wait_for(asking, 10)
    assert (status, body["state"]) == (200, "complete")


async def test_waiting_ends_with_the_time(admin):
    admin.rooms.add(ROOM)
    status, body = await admin.ask("GET", room_path(ROOM, "?wait=0.01"))
    assert (status, body["state"]) == (200, "backoff")


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "", "1s"])
async def test_bad_waits(admin, wait):
    admin.rooms.add(ROOM)
    await refused(admin.ask("GET", room_path(ROOM, f"?wait={wait}")), 400, "M_INVALID_PARAM")


async def test_trigger(admin):
    admin.rooms.add(ROOM)
    assert await admin.ask("POST", room_path(ROOM, "/resync")) == (
        202,
        {"room_id": ROOM, "state": "queued"},
    )
    assert admin.rooms.rooms[ROOM].state == "queued"


async def test_trigger_of_a_room_that_is_not_partial(admin):
    admin.rooms.add(ROOM, "complete")
    await refused(admin.ask("POST", room_path(ROOM, "/resync")), 409, "M_UNKNOWN")


async def test_join(admin):
    status, body = await admin.ask("POST", f"{API}/join", json=JOIN)
    assert status == 202
    assert body == {
        "room_id": ROOM,
        "join_event_id": "$join",
        "partial": True,
        "state_events": 7,
        "servers": 2,
    }
    assert admin.joins == [(ROOM, ("hs1", "hs2"), "@user:example.com")]


@pytest.mark.parametrize(
    ("change", "errcode"),
    [
        ({"room_id": 5}, "M_BAD_JSON"),
        ({"room_id": None}, "M_BAD_JSON"),
        ({"user_id": ["@a:b"]}, "M_BAD_JSON"),
        ({"via": "hs1"}, "M_BAD_JSON"),
        ({"via": [1]}, "M_BAD_JSON"),
        ({"via": None}, "M_BAD_JSON"),
        ({"via": []}, "M_INVALID_PARAM"),
        ({"via": ["example.com"]}, "M_INVALID_PARAM"),
        ({"via": ["h s"]}, "M_INVALID_PARAM"),
        ({"via": [f"hs{n}" for n in range(51)]}, "M_INVALID_PARAM"),
        ({"room_id": "room"}, "M_INVALID_PARAM"),
        ({"user_id": "user"}, "M_INVALID_PARAM"),
        ({"user_id": "@user:other.org"}, "M_INVALID_PARAM"),
    ],
)
async def test_joins_that_make_no_sense(admin, change, errcode):
    await refused(admin.ask("POST", f"{API}/join", json=JOIN | change), 400, errcode)
    assert admin.joins == []


@pytest.mark.parametrize(
    ("body", "status", "errcode"),
    [
        (b"", 400, "M_NOT_JSON"),
        (b"{", 400, "M_NOT_JSON"),
        (b"\xff\xfe", 400, "M_NOT_JSON"),
        (b"[" * 60_000, 400, "M_NOT_JSON"),
        (b"[]", 400, "M_BAD_JSON"),
        (b"null", 400, "M_BAD_JSON"),
        (b" " * (MAX_BODY_BYTES + 1), 413, "M_TOO_LARGE"),
    ],
)
async def test_bodies_that_are_no_object(admin, body, status, errcode):
    await refused(admin.ask("POST", f"{API}/join", data=body), status, errcode)


async def test_a_body_that_is_cut_off(admin):
    """The connection ends in the middle of the body: nothing is joined and the listener goes on."""
    body = json.dumps(JOIN).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    writer.write(
        f"POST {API}/join HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
        f"a-token-for-these-tests\r\nContent-Length: {len(body) + 10}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await admin.ask("GET", f"{API}/rooms"))[0] == 200
    assert admin.joins == []


async def test_a_join_that_fails(admin, join_failure):
    admin.join_error = join_failure
    said = await refused(admin.ask("POST", f"{API}/join", json=JOIN), 502, "M_UNKNOWN")
    assert said == "the join failed: hs1: 403 M_FORBIDDEN: banned"


async def test_leave(admin):
    body = {"room_id": ROOM, "user_id": "@alice:example.com"}
    admin.members.append((ROOM, "@alice:example.com"))
    assert await admin.ask("POST", f"{API}/leave", json=body) == (
        200,
        {"room_id": ROOM, "event_id": "$leave"},
    )
    said = await refused(admin.ask("POST", f"{API}/leave", json=body), 403, "M_FORBIDDEN")
    assert "@alice:example.com" in said
    for change in ({"room_id": "room"}, {"user_id": "alice"}):
        request = admin.ask("POST", f"{API}/leave", json={**body, **change})
        await refused(request, 400, "M_INVALID_PARAM")
    await refused(admin.ask("POST", f"{API}/leave", json={"room_id": ROOM}), 400, "M_BAD_JSON")


async def test_purge(admin):
    admin.rooms.add(ROOM)
    assert await admin.ask("DELETE", room_path(ROOM)) == (200, {"room_id": ROOM})
    assert ROOM not in admin.rooms.rooms
    await refused(admin.ask("DELETE", room_path(ROOM)), 404, "M_NOT_FOUND")


async def test_what_was_not_foreseen_is_a_plain_500(admin, caplog):
    admin.join_error = RuntimeError("secret detail")
    said = await refused(admin.ask("POST", f"{API}/join", json=JOIN), 500, "M_UNKNOWN")
    assert "secret detail" not in said


async def test_a_database_that_is_away(admin):
    admin.join_error = DatabaseUnavailable("cannot use the database postgresql://user@host/name")
    said = await refused(admin.ask("POST", f"{API}/join", json=JOIN), 503, "M_UNKNOWN")
    assert "user@host" not in said


async def test_no_such_endpoint(admin):
    await refused(admin.ask("GET", "/nonsense"), 404, "M_UNRECOGNIZED")
    await refused(admin.ask("GET", f"{API}/nonsense"), 404, "M_UNRECOGNIZED")
    await refused(admin.ask("PUT", f"{API}/rooms"), 405, "M_UNRECOGNIZED")
    await refused(admin.ask("POST", "/health"), 405, "M_UNRECOGNIZED")


async def test_health_needs_no_token(admin):
    status, body = await admin.ask("GET", "/health", token=None)
    assert (status, body["status"]) == (503, "failing")
    assert len(body["problems"]) == 2
    admin.health.beat()
    await admin.health.probe()
    assert await admin.ask("GET", "/health", token=None) == (200, {"status": "ok", "problems": []})


async def test_metrics_need_no_token_and_count_requests_by_route(admin):
    for n in range(3):
        await admin.ask("GET", room_path(f"!{n}:example.com"))
    admin.rooms.add(ROOM)
    await admin.ask("GET", "/nonsense/1")
    async with admin.session.get(f"http://127.0.0.1:{admin.port}/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        text = await response.text()
    route = f'route="{API}/rooms/{{room_id}}"'
    assert f'resync_admin_requests_total{{method="GET",{route},status="404"}} 3.0' in text
    assert 'route="unknown",status="404"' in text
    assert "nonsense" not in text
    assert 'resync_rooms{state="backoff"} 1.0' in text


async def test_metrics_without_a_database(admin):
    admin.rooms.away = True
    async with admin.session.get(f"http://127.0.0.1:{admin.port}/metrics") as response:
        assert response.status == 200
        assert "resync_event_loop_lag_seconds_count" in await response.text()


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/", "text/html"), ("/status.js", "text/javascript"), ("/status.css", "text/css")],
)
async def test_the_page_loads_only_from_itself(admin, path, content_type):
    async with admin.session.get(f"http://127.0.0.1:{admin.port}{path}") as response:
        assert response.status == 200
        assert response.content_type == content_type
        policy = response.headers["Content-Security-Policy"]
        text = await response.text()
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "//" not in text.replace("// ", "")
    assert "style=" not in text
    assert "innerHTML" not in text


async def test_an_address_that_is_taken(admin):
    from aiohttp import web

    with pytest.raises(ListenerFailed, match=str(admin.port)):
        async with listen(web.Application(), "127.0.0.1", admin.port, setting="admin"):
            pytest.fail("two listeners on one address")
