"""The simulated residents over real HTTPS: what they answer when nothing is wrong."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from federation.checks import Outcome, VerifyKey, check_pdus
from federation.hashing import compute_event_id
from federation.room_versions import ROOM_VERSIONS
from federation.signing import decode_base64, encode_base64, sign_json, verify_signed_json
from federation.simulator import ENDPOINTS, Mix, SimulatedFederation
from federation.simulator.certificates import write_certificate
from federation.simulator.resident import bind
from federation.x_matrix import authorization_header
from tests.integration.federation.simulator_client import JOINING, USER, joining_server

MIX = Mix(left=0.1, invited=0.1, banned=0.1, renamed=0.3, returned=0.2)


@pytest.fixture
async def simulated():
    async with SimulatedFederation(servers=2, unreachable=1, seed=4) as simulated:
        yield simulated


@pytest.fixture
async def server(simulated):
    async with joining_server(simulated) as server:
        yield server


def ids(pdus, room):
    return [compute_event_id(pdu, room.version) for pdu in pdus]


@pytest.mark.parametrize("version", ROOM_VERSIONS)
async def test_a_partial_join_and_the_full_state_behind_it(simulated, server, version):
    room = simulated.create_room(version, members=40, mix=MIX)
    there = room.current_state()
    destination = simulated.server_names[0]
    event_id, answer = await server.join(destination, room.room_id, version)

    assert answer["members_omitted"] is True
    state = ids(answer["state"], room)
    assert set(state) == {
        event_id for key, event_id in there.items() if key.type != "m.room.member"
    }
    auth_chain = ids(answer["auth_chain"], room)
    assert not set(state) & set(auth_chain)
    assert set(room.auth_chain([event_id])) <= {*state, *auth_chain}
    assert answer["servers_in_room"] == room.joined_servers(there.values())
    assert simulated.unreachable[0] in answer["servers_in_room"]

    found = (await server.about(destination, "state_ids", room.room_id, event_id)).json
    assert set(found["pdu_ids"]) == set(there.values())
    assert set(found["auth_chain_ids"]) == set(room.auth_chain(there.values()))
    full = (await server.about(destination, "state", room.room_id, event_id)).json
    assert set(ids(full["pdus"], room)) == set(there.values())
    assert set(ids(full["auth_chain"], room)) == set(found["auth_chain_ids"])
    assert room.state_before(event_id) == there


async def test_what_is_served_passes_the_checks_with_the_keys_of_the_notary(simulated, server):
    room = simulated.create_room("10", members=30, mix=MIX)
    destination = simulated.server_names[1]
    event_id, _ = await server.join(destination, room.room_id)
    query = {"server_keys": {name: {} for name in [*simulated.server_names, "server0.invalid"]}}
    async with aiohttp.ClientSession() as session:
        url = f"https://{destination}/_matrix/key/v2/query"
        async with session.post(url, json=query, ssl=False) as response:
            answers = (await response.json())["server_keys"]
    assert {answer["server_name"] for answer in answers} == set(query["server_keys"])
    notary = simulated.resident(destination).identity
    keys = {(JOINING, server.key.key_id): VerifyKey(server.key.verify_key, 2**53)}
    for answer in answers:
        verify_signed_json(answer, destination, notary.verify_key, notary.key_id)
        for key_id, entry in answer["verify_keys"].items():
            key = decode_base64(entry["key"])
            verify_signed_json(answer, answer["server_name"], key, key_id)
            keys[answer["server_name"], key_id] = VerifyKey(key, answer["valid_until_ts"])
    assert (await server.about(destination, "state", room.room_id, event_id)).status == 200
    texts = [event.text for event in room.events.values()]
    results = check_pdus(texts, "10", room.room_id, keys)
    assert {result.outcome for result in results} == {Outcome.ACCEPTED}


async def test_old_keys_are_published_with_their_end(simulated):
    identity = simulated.residents[0].identity
    old_id, old_key = identity.key_id, identity.verify_key
    identity.rotate(expired_ts=1_700_000_500_000)
    url = f"https://{identity.server_name}/_matrix/key/v2/server"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as response:
        answer = await response.json()
    assert answer["old_verify_keys"] == {
        old_id: {"key": encode_base64(old_key), "expired_ts": 1_700_000_500_000}
    }
    assert list(answer["verify_keys"]) == [identity.key_id] != [old_id]
    verify_signed_json(answer, identity.server_name, identity.verify_key, identity.key_id)


class TestJoining:
    async def test_full_state_for_those_who_do_not_ask_for_less(self, simulated, server):
        room = simulated.create_room(members=20)
        there = room.current_state()
        destination = simulated.server_names[0]
        template = (await server.make_join(destination, room.room_id, "10")).json
        event_id, pdu = server.sign_join(template["event"], "10")
        answer = (await server.send_join(destination, room.room_id, event_id, pdu)).json
        assert answer["members_omitted"] is False
        assert set(ids(answer["state"], room)) == set(there.values())

    async def test_a_resident_that_knows_no_partial_state(self, simulated, server):
        room = simulated.create_room(members=20)
        simulated.residents[0].supports_partial_state = False
        _, answer = await server.join(simulated.server_names[0], room.room_id)
        assert answer["members_omitted"] is False
        assert len(answer["state"]) > 20

    async def test_a_nameless_room_comes_with_its_heroes(self, simulated, server):
        room = simulated.create_room(members=20, name=None)
        _, answer = await server.join(simulated.server_names[0], room.room_id)
        members = [pdu for pdu in answer["state"] if pdu["type"] == "m.room.member"]
        assert len(members) == 5
        assert all(pdu["content"]["membership"] in ("join", "invite") for pdu in members)

    async def test_an_invite_to_the_joining_user_is_kept_in_the_partial_state(
        self, simulated, server
    ):
        room = simulated.create_room(members=5, join_rule="public")
        room.set_join_rules("invite")
        invite = room.invite(USER)
        event_id, answer = await server.join(simulated.server_names[0], room.room_id)
        assert invite.event_id in ids(answer["state"], room)
        assert invite.event_id in room.events[event_id].auth_event_ids

    async def test_a_restricted_join_is_countersigned(self, simulated, server):
        room = simulated.create_room("10", members=5)
        room.set_join_rules("restricted", [])
        destination = simulated.server_names[0]
        _, answer = await server.join(destination, room.room_id)
        assert answer["event"]["content"]["join_authorised_via_users_server"].endswith(destination)
        assert set(answer["event"]["signatures"]) == {JOINING, destination}

    async def test_the_version_must_be_supported(self, simulated, server):
        room = simulated.create_room("10")
        reply = await server.make_join(simulated.server_names[0], room.room_id, "9", "11")
        assert (reply.status, reply.json["errcode"], reply.json["room_version"]) == (
            400,
            "M_INCOMPATIBLE_ROOM_VERSION",
            "10",
        )

    @pytest.mark.parametrize("obstacle", ["banned", "not invited", "unknown room"])
    async def test_those_who_may_not_join_are_refused(self, simulated, server, obstacle):
        room = simulated.create_room("10")
        room_id = room.room_id
        if obstacle == "banned":
            room.ban(USER)
        elif obstacle == "not invited":
            room.set_join_rules("invite")
        else:
            room_id = "!unknown:here.test"
        reply = await server.make_join(simulated.server_names[0], room_id, "10")
        assert reply.status == (404 if obstacle == "unknown room" else 403)

    async def test_a_join_that_is_wrong_changes_nothing(self, simulated, server):
        room = simulated.create_room("10")
        destination = simulated.server_names[0]
        template = (await server.make_join(destination, room.room_id, "10")).json["event"]
        before = list(room.events)
        event_id, good = server.sign_join(template, "10")
        wrong = [
            (event_id, {**good, "signatures": {JOINING: {server.key.key_id: "A" * 86}}}),
            (event_id, {**good, "signatures": {}}),
            (event_id, {**good, "content": {"membership": "join", "displayname": "Forged"}}),
            ("$other", good),
            server.sign_join({**template, "content": {"membership": "leave"}}, "10"),
            server.sign_join({**template, "type": "m.room.name"}, "10"),
            server.sign_join({**template, "prev_events": ["$nowhere"]}, "10"),
            server.sign_join({**template, "room_id": "!other:here.test"}, "10"),
            server.sign_join({**template, "sender": "@a:b.test", "state_key": "@a:b.test"}, "10"),
            (event_id, []),
        ]
        for name, pdu in wrong:
            reply = await server.send_join(destination, room.room_id, name, pdu)
            assert reply.status in (400, 403), (pdu, reply)
            assert reply.json["errcode"].startswith("M_")
        assert list(room.events) == before
        reply = await server.send_join(destination, room.room_id, event_id, good)
        assert reply.status == 200
        again = await server.send_join(destination, room.room_id, event_id, good)
        assert again.status == 200
        assert list(room.events) == [*before, event_id]


class TestWhoMayAsk:
    async def test_only_members_may(self, simulated, server):
        room = simulated.create_room()
        message = room.message()
        destination = simulated.server_names[0]
        for endpoint in ("state_ids", "state"):
            reply = await server.about(destination, endpoint, room.room_id, message.event_id)
            assert (reply.status, reply.json["errcode"]) == (403, "M_FORBIDDEN")
        quoted = quote(message.event_id, safe="")
        assert (await server.ask(destination, "GET", f"/v1/event/{quoted}")).status == 403
        await server.join(destination, room.room_id)
        assert (await server.ask(destination, "GET", f"/v1/event/{quoted}")).status == 200
        room.ban(USER)
        assert (await server.ask(destination, "GET", f"/v1/event/{quoted}")).status == 403

    async def test_a_join_not_seen_yet_is_no_membership(self, simulated, server):
        simulated.propagates_joins = False
        room = simulated.create_room(members=4)
        near, far = simulated.server_names
        event_id, _ = await server.join(near, room.room_id)
        assert (await server.about(near, "state_ids", room.room_id, event_id)).status == 200
        assert (await server.about(far, "state_ids", room.room_id, event_id)).status == 403
        simulated.propagate()
        assert (await server.about(far, "state_ids", room.room_id, event_id)).status == 200

    async def test_a_withheld_event_is_unknown_to_all(self, simulated, server):
        room = simulated.create_room()
        destination = simulated.server_names[0]
        await server.join(destination, room.room_id)
        first, second = room.message("1"), room.message("2")
        simulated.withhold(first)
        for event, status in ((first, 404), (second, 200)):
            target = f"/v1/event/{quote(event.event_id, safe='')}"
            assert (await server.ask(destination, "GET", target)).status == status
            reply = await server.about(destination, "state_ids", room.room_id, event.event_id)
            assert reply.status == status

    async def test_a_request_must_be_signed_by_a_known_key(self, simulated, server):
        room = simulated.create_room()
        destination, other = simulated.server_names
        room_id = quote(room.room_id, safe="")
        target = f"/v1/state_ids/{room_id}?event_id=x"
        assert (await server.ask(destination, "GET", target, headers={})).status == 401
        good = await server.ask(destination, "GET", target)
        assert good.status == 403
        async with joining_server(simulated, trusted=False) as stranger:
            reply = await stranger.ask(destination, "GET", target)
            assert (reply.status, reply.json["errcode"]) == (401, "M_UNAUTHORIZED")
        for meant in (
            (other, "GET", "/_matrix/federation" + target),
            (destination, "PUT", "/_matrix/federation" + target),
            (destination, "GET", "/_matrix/federation" + target + "y"),
        ):
            header = authorization_header(JOINING, server.key, *meant)
            reply = await server.ask(destination, "GET", target, headers={"Authorization": header})
            assert reply.status == 401

    async def test_a_key_is_asked_of_a_server_on_loopback(self, simulated, tmp_path):
        """The joining server is not announced to the simulation: it publishes its key."""
        listening = bind("127.0.0.1", 0)
        async with joining_server(simulated, trusted=False) as server:
            server.server_name = f"127.0.0.1:{listening.getsockname()[1]}"
            asked = []

            async def keys(request):
                asked.append(request.path)
                entry = {"key": server.key.verify_key_base64}
                answer = {
                    "server_name": server.server_name,
                    "valid_until_ts": 2**52,
                    "verify_keys": {server.key.key_id: entry},
                    "old_verify_keys": {},
                }
                return web.json_response(sign_json(answer, server.server_name, server.key))

            app = web.Application()
            app.router.add_get("/_matrix/key/v2/server", keys)
            runner = web.AppRunner(app)
            await runner.setup()
            context = write_certificate(tmp_path).server_context()
            await web.SockSite(runner, listening, ssl_context=context).start()
            try:
                room = simulated.create_room()
                for _ in range(2):
                    reply = await server.ask(
                        simulated.server_names[0],
                        "GET",
                        f"/v1/state_ids/{quote(room.room_id, safe='')}?event_id=x",
                    )
                    assert reply.status == 403, reply
                assert asked == ["/_matrix/key/v2/server"]
            finally:
                await runner.cleanup()


class TestQueries:
    async def test_missing_events_lie_between_what_is_known_and_what_is_new(
        self, simulated, server
    ):
        room = simulated.create_room()
        destination = simulated.server_names[0]
        event_id, _ = await server.join(destination, room.room_id)
        messages = [room.message(str(number)).event_id for number in range(6)]
        target = f"/v1/get_missing_events/{quote(room.room_id, safe='')}"

        async def missing(latest, earliest, **more):
            content = {"latest_events": latest, "earliest_events": earliest, **more}
            reply = await server.ask(destination, "POST", target, content)
            assert reply.status == 200, reply
            return ids(reply.json["events"], room)

        assert await missing([messages[-1]], [event_id]) == messages[:-1]
        assert await missing([messages[-1]], [event_id], limit=2) == messages[3:5]
        depth = room.events[messages[2]].depth
        assert await missing([messages[-1]], [event_id], min_depth=depth) == messages[2:5]
        simulated.withhold(messages[2])
        assert await missing([messages[-1]], [event_id]) == messages[3:5]

    async def test_backfill_goes_back_from_where_it_is_asked(self, simulated, server):
        room = simulated.create_room()
        destination = simulated.server_names[0]
        await server.join(destination, room.room_id)
        messages = [room.message(str(number)).event_id for number in range(6)]
        target = f"/v1/backfill/{quote(room.room_id, safe='')}?limit=3&v={quote(messages[4])}"
        reply = await server.ask(destination, "GET", target)
        assert ids(reply.json["pdus"], room) == messages[4:1:-1]

    async def test_the_auth_chain_of_an_event(self, simulated, server):
        room = simulated.create_room(members=3)
        destination = simulated.server_names[0]
        event_id, _ = await server.join(destination, room.room_id)
        target = f"/v1/event_auth/{quote(room.room_id, safe='')}/{quote(event_id, safe='')}"
        reply = await server.ask(destination, "GET", target)
        assert set(ids(reply.json["auth_chain"], room)) == set(room.auth_chain([event_id]))

    async def test_events_sent_to_a_resident_enter_the_room(self, simulated, server):
        room = simulated.create_room()
        destination = simulated.server_names[0]
        await server.join(destination, room.room_id)
        template = room.template("m.room.message", {"body": "Hi"}, USER, None)
        event_id, pdu = server.sign_join(template, "10")
        forged = {**pdu, "content": {"body": "Forged"}}
        for pdus, errors in (([forged], 1), ([pdu], 0)):
            content = {"origin": JOINING, "origin_server_ts": 1, "pdus": pdus}
            reply = await server.ask(destination, "PUT", f"/v1/send/{errors}", content)
            assert sum("error" in result for result in reply.json["pdus"].values()) == errors
        assert list(room.forward_extremities) == [event_id]
        assert room.events[event_id].text.count("Hi") == 1

    async def test_what_is_unknown_is_said_to_be(self, simulated, server):
        room = simulated.create_room()
        destination = simulated.server_names[0]
        await server.join(destination, room.room_id)
        reply = await server.about(destination, "state_ids", room.room_id, "$nowhere")
        assert (reply.status, reply.json["errcode"]) == (404, "M_NOT_FOUND")
        reply = await server.ask(destination, "GET", "/v1/nonsense")
        assert (reply.status, reply.json["errcode"]) == (404, "M_UNRECOGNIZED")

    async def test_requests_are_listed_and_counted(self, simulated, server):
        room = simulated.create_room()
        resident, other = simulated.residents
        event_id, _ = await server.join(resident.server_name, room.room_id)
        await server.about(resident.server_name, "state_ids", room.room_id, "$nowhere")
        assert [asked.endpoint for asked in resident.requests] == [
            "make_join",
            "send_join",
            "state_ids",
        ]
        assert resident.requests.count() == 3
        assert resident.requests.count("state_ids") == 1
        [asked] = resident.requests.of("state_ids")
        assert (asked.origin, asked.status) == (JOINING, 404)
        assert "$nowhere" in asked.target
        assert event_id in resident.requests.of("send_join")[0].target
        assert other.requests.count() == 0
        assert {asked.endpoint for asked in resident.requests} <= set(ENDPOINTS)


async def test_a_resident_pushes_signed_events(simulated, server, tmp_path):
    """Another resident serves as the receiver."""
    sender, receiver = simulated.residents
    room = simulated.create_room()
    event = room.message()
    receiver.unseen.add(event.event_id)
    status, body = await sender.push(receiver.server_name, [event])
    assert (status, body) == (200, {"pdus": {event.event_id: {}}})
    assert event.event_id not in receiver.unseen
    [asked] = receiver.requests.of("send")
    assert asked.origin == sender.server_name


async def test_a_large_state_does_not_hold_up_the_event_loop(simulated, server):
    room = simulated.create_room(members=3000)
    destination = simulated.server_names[0]
    event_id, _ = await server.join(destination, room.room_id)
    full, small = await asyncio.gather(
        server.about(destination, "state", room.room_id, event_id),
        server.ask(destination, "GET", "/v1/version"),
    )
    assert len(full.json["pdus"]) == len(room.state_before(event_id))
    assert small.status == 200
