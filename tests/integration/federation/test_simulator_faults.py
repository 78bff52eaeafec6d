"""The simulated residents misbehaving on request, seen by a plain HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import json

import aiohttp
import pytest

from federation.checks import Outcome, VerifyKey, check_pdus
from federation.hashing import compute_event_id
from federation.simulator import SimulatedFederation, lies
from federation.simulator.faults import (
    ANY,
    CutShort,
    Garbage,
    IgnoreOmitMembers,
    Oversize,
    StallMidway,
    Trickle,
)
from tests.integration.federation.simulator_client import JOINING, joining_server

BROKEN = (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)


@pytest.fixture
async def simulated():
    async with SimulatedFederation(servers=1, seed=9) as simulated:
        yield simulated


@pytest.fixture
async def joined(simulated):
    """A server that is in a room, the room, and its join."""
    async with joining_server(simulated) as server:
        room = simulated.create_room("10", members=30)
        event_id, _ = await server.join(simulated.server_names[0], room.room_id)
        yield _Joined(simulated, server, room, event_id)


class _Joined:
    def __init__(self, simulated, server, room, event_id):
        self.resident = simulated.residents[0]
        self.faults = self.resident.faults
        self.server = server
        self.room = room
        self.event_id = event_id

    async def ask(self, endpoint="state_ids"):
        return await self.server.about(
            self.resident.server_name, endpoint, self.room.room_id, self.event_id
        )


async def test_refusals_last_as_often_as_planned(joined):
    joined.faults.refuse("state_ids", status=403, times=2)
    joined.faults.refuse("state", status=500, errcode="M_UNKNOWN")
    statuses = [(await joined.ask()).status for _ in range(3)]
    assert statuses == [403, 403, 200]
    assert [(await joined.ask("state")).status for _ in range(3)] == [500, 500, 500]
    joined.faults.clear()
    assert (await joined.ask("state")).status == 200


async def test_a_plan_can_wait_and_can_be_about_one_event(joined):
    joined.faults.refuse(ANY, skip=1, times=1)
    joined.faults.refuse("state_ids", status=404, containing="$elsewhere")
    assert [(await joined.ask()).status for _ in range(3)] == [200, 403, 200]
    reply = await joined.server.about(
        joined.resident.server_name, "state_ids", joined.room.room_id, "$elsewhere"
    )
    assert reply.json["error"] == "Refused by the simulator"


async def test_a_rate_limit_says_when_to_come_back(joined):
    joined.faults.rate_limit("state_ids", retry_after_ms=1234, times=1)
    reply = await joined.ask()
    assert reply.status == 429
    assert reply.json["errcode"] == "M_LIMIT_EXCEEDED"
    assert reply.json["retry_after_ms"] == 1234


async def test_a_stalled_request_is_silent_until_released(joined):
    joined.faults.stall("state_ids")
    asking = asyncio.create_task(joined.ask())
    done, _ = await asyncio.wait([asking], timeout=0.2)
    assert not done
    assert joined.resident.requests.of("state_ids")[-1].status == 0
    joined.faults.clear()
    assert (await asking).status == 200


@pytest.mark.parametrize("endpoint", ["state_ids", "state"])
async def test_a_body_stalls_midway_and_goes_on_when_released(joined, endpoint):
    whole = (await joined.ask(endpoint)).body
    joined.faults.add(endpoint, StallMidway(after=0.5), times=1)
    asking = asyncio.create_task(joined.ask(endpoint))
    done, _ = await asyncio.wait([asking], timeout=0.2)
    assert not done
    joined.faults.release()
    assert (await asking).body == whole


async def test_a_truncated_body_is_seen_as_such(joined):
    joined.faults.truncate("state", after=0.3, times=1)
    with pytest.raises(BROKEN):
        await joined.ask("state")
    assert (await joined.ask("state")).status == 200


async def test_a_truncated_large_body_without_a_length_is_seen_as_such(simulated):
    async with joining_server(simulated) as server:
        room = simulated.create_room("10", members=3000)
        destination = simulated.server_names[0]
        event_id, _ = await server.join(destination, room.room_id)
        simulated.residents[0].faults.truncate("state", after=0.9, times=1)
        with pytest.raises(BROKEN):
            await server.about(destination, "state", room.room_id, event_id)
        reply = await server.about(destination, "state", room.room_id, event_id)
        assert len(reply.body) > 1024 * 1024
        assert len(reply.json["pdus"]) == len(room.state_before(event_id))


async def test_a_body_cut_short_is_broken_json(joined):
    joined.faults.add("state", CutShort(after=0.5), times=1)
    reply = await joined.ask("state")
    with pytest.raises(json.JSONDecodeError):
        json.loads(reply.body)


async def test_garbage_is_not_json(joined):
    joined.faults.add("state_ids", Garbage(), times=1)
    reply = await joined.ask()
    assert reply.status == 200
    assert reply.body.startswith(b"<html>")


async def test_an_oversized_body_is_valid_and_as_large_as_asked(joined):
    honest = (await joined.ask()).json
    joined.faults.add("state_ids", Oversize(padding=200_000), times=1)
    reply = await joined.ask()
    assert len(reply.json.pop("padding")) == 200_000
    assert {name: reply.json[name] for name in honest} == honest


async def test_a_trickle_arrives_in_the_end(joined):
    whole = (await joined.ask()).body
    joined.faults.add("state_ids", Trickle(piece=7, interval=0.001), times=1)
    assert (await joined.ask()).body == whole


async def test_a_connection_can_break_before_the_answer(joined):
    joined.faults.disconnect("state_ids", times=2)  # aiohttp repeats a GET once by itself.
    with pytest.raises(BROKEN):
        await joined.ask()
    assert (await joined.ask()).status == 200


async def test_disappearing_refuses_connections_and_coming_back_serves_again(joined):
    joined.faults.stall("state")
    stalled = asyncio.create_task(joined.ask("state"))
    await joined.resident.requests.wait_for("state")
    await joined.resident.disappear()
    with pytest.raises(BROKEN):
        await stalled
    with pytest.raises(aiohttp.ClientConnectorError):
        await joined.ask()
    await joined.resident.come_back()
    assert (await joined.ask()).status == 200
    await joined.resident.come_back()


async def test_partial_state_can_be_refused_silently(simulated):
    async with joining_server(simulated) as server:
        room = simulated.create_room("10", members=20)
        simulated.residents[0].faults.add("send_join", IgnoreOmitMembers())
        _, answer = await server.join(simulated.server_names[0], room.room_id)
        assert answer["members_omitted"] is False
        assert len(answer["state"]) > 20


class TestLies:
    """The lies that must be told apart are: each has the outcome it is meant to have."""

    OUTCOMES = (
        (lies.wrong_hashes, Outcome.REDACTED, "hash"),
        (lies.bad_signatures, Outcome.DROPPED, "signature"),
        (lies.no_signatures, Outcome.DROPPED, "signed"),
        (lies.floats, Outcome.DROPPED, ""),
        (lies.large_integers, Outcome.DROPPED, ""),
        (lies.huge_strings, Outcome.DROPPED, ""),
        (lies.missing_keys, Outcome.DROPPED, "sender"),
        (lies.other_ids, Outcome.DROPPED, "signature"),
    )

    @pytest.mark.parametrize(
        ("lie", "outcome", "reason"), OUTCOMES, ids=[lie.__name__ for lie, _, _ in OUTCOMES]
    )
    async def test_lies_about_events(self, joined, lie, outcome, reason):
        honest = (await joined.ask("state")).json["pdus"]
        joined.faults.lie("state", lie("pdus", count=2), times=1)
        reply = await joined.ask("state")
        texts = [json.dumps(pdu) for pdu in reply.json["pdus"]]
        keys = {
            (identity.server_name, identity.key_id): VerifyKey(identity.verify_key, 2**53)
            for identity in [joined.resident.identity]
        }
        results = check_pdus(texts, "10", joined.room.room_id, keys)
        assert [result.outcome for result in results] == [
            *[outcome] * 2,
            *[Outcome.ACCEPTED] * (len(honest) - 2),
        ]
        assert all(reason in result.reason for result in results[:2])
        if lie in (lies.wrong_hashes, lies.bad_signatures, lies.no_signatures):
            forged = [compute_event_id(pdu, joined.room.version) for pdu in reply.json["pdus"]]
            assert set(forged) == set(joined.room.state_before(joined.event_id).values())
        assert (await joined.ask("state")).json["pdus"] == honest

    async def test_lies_about_ids(self, joined):
        honest = (await joined.ask()).json["pdu_ids"]
        joined.faults.lie("state_ids", lies.leave_out("pdu_ids", 3))
        joined.faults.lie("state_ids", lies.unknown_ids("pdu_ids", 2))
        joined.faults.lie("state_ids", lies.duplicates("pdu_ids", 1))
        told = (await joined.ask()).json["pdu_ids"]
        assert told[:-3] == honest[3:]
        assert all(event_id.startswith("$unknown") for event_id in told[-3:-1])
        assert told[-1] == told[0]

    async def test_events_of_another_room_are_real_ones(self, simulated, joined):
        other = simulated.create_room("10")
        stray = other.message()
        joined.faults.lie("state", lies.extra("pdus", [stray.json]))
        told = (await joined.ask("state")).json["pdus"]
        assert told[-1] == other.pdu(stray.event_id)
        assert told[-1]["room_id"] != joined.room.room_id

    async def test_fields_can_be_absurd(self, joined):
        joined.faults.lie("state_ids", lies.set_field("auth_chain_ids", {"not": "a list"}))
        joined.faults.lie("state_ids", lies.set_field("bare", b"NaN"))
        joined.faults.lie("state_ids", lies.remove_field("pdu_ids"))
        reply = await joined.ask()
        assert b'"bare":NaN' in reply.body
        told = json.loads(reply.body)
        assert told["auth_chain_ids"] == {"not": "a list"}
        assert "pdu_ids" not in told


async def test_stopping_ends_requests_that_are_stalled():
    async with SimulatedFederation() as simulated, joining_server(simulated) as server:
        room = simulated.create_room()
        destination = simulated.server_names[0]
        event_id, _ = await server.join(destination, room.room_id)
        simulated.residents[0].faults.stall("state_ids")
        asking = asyncio.create_task(server.about(destination, "state_ids", room.room_id, event_id))
        await simulated.residents[0].requests.wait_for("state_ids")
        async with asyncio.timeout(5):
            await simulated.stop()
            with contextlib.suppress(*BROKEN):
                await asking
        assert asking.done()
    assert JOINING not in simulated.world.identities
