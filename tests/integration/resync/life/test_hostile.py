"""What strangers may try: all of it is refused or bounded, and others notice nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from federation.simulator import SimulatedFederation
from federation.simulator.identity import derive_identity
from federation.x_matrix import authorization_header
from resync.receive import transactions
from tests.integration.resync.life.life import Life, target
from tests.integration.resync.life.test_receiving import make_room, remote_user
from tests.integration.resync.our_server import until

SEND = "/_matrix/federation/v1/send/"


async def test_a_forged_origin_is_refused(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    """Signed with a key of another server than the one the header names."""
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    victim, forger = (resident.identity for resident in simulated.residents)
    body = {
        "origin": victim.server_name,
        "origin_server_ts": 1,
        "pdus": [room.pdu(room.message("Forged").event_id)],
    }
    header = authorization_header(
        victim.server_name, forger.key, life.server_name, "PUT", SEND + "1", body
    )

    for authorization in (
        header,
        header.replace(forger.key_id, victim.key_id),
        header.replace(f'origin="{victim.server_name}"', f'origin="{life.server_name}"'),
        "X-Matrix origin=",
        "",
    ):
        status, answer = await life.request(
            victim, "PUT", SEND + "1", body, authorization=authorization
        )
        assert (status, answer["errcode"]) == (401, "M_UNAUTHORIZED"), authorization
    assert life.staged() == []
    assert life.ours.query("SELECT * FROM resync_received_transactions") == []
    life.release_resync()


async def test_a_request_for_another_server_is_refused(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    sender = simulated.residents[0].identity
    header = authorization_header(
        sender.server_name, sender.key, "other.test", "PUT", SEND + "1", {"pdus": []}
    )
    status, _ = await life.request(sender, "PUT", SEND + "1", {"pdus": []}, authorization=header)
    assert status == 401


async def test_wrong_signatures_and_hashes_of_events(
    life: Life, simulated: SimulatedFederation
) -> None:
    """The one is dropped with an error, the other redacted, and the rest is taken in."""
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    stranger = derive_identity("stranger.test", 99)
    good = room.message("Good")
    unsigned = room.message("Unsigned", prev_events=[good.event_id], signers=[stranger])
    last = room.set_topic("Changed on the way", prev_events=[good.event_id])
    sender = simulated.residents[0].identity
    altered = room.pdu(last.event_id)
    altered["content"] = {"topic": "Not what was signed"}
    body = {
        "origin": sender.server_name,
        "origin_server_ts": 1,
        "pdus": [room.pdu(good.event_id), room.pdu(unsigned.event_id), altered, 7, {"room_id": 7}],
    }

    status, answer = await life.request(sender, "PUT", SEND + "mixed", body)

    assert status == 200
    assert answer["pdus"][good.event_id] == answer["pdus"][last.event_id] == {}
    assert "error" in answer["pdus"][unsigned.event_id]
    await life.until_stored([good, last])
    assert unsigned.event_id not in life.graph()
    (stored,) = life.ours.column(
        "SELECT json FROM event_json WHERE event_id = :id", id=last.event_id
    )
    assert json.loads(stored)["content"] == {}
    life.release_resync()


async def test_a_replayed_transaction_is_answered_and_has_no_effect(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    first, second = room.message("First"), room.message("Second")

    answer = await life.push([first], transaction_id="same")
    assert await life.push([second], transaction_id="same") == answer
    await life.until_stored([first])
    assert await life.push([first], transaction_id="another") == answer
    await until(lambda: not life.staged())
    assert second.event_id not in life.graph()
    # Ids are chosen by each server for itself.
    await life.push([second], by=1, transaction_id="same")
    await life.until_stored([second])
    life.release_resync()


async def test_events_of_rooms_we_are_not_in(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room, other = make_room(simulated), make_room(simulated)
    life.hold_resync()
    await life.join(room)
    foreign, ours = other.message("Not for you"), room.message("For you")

    results = await life.push([foreign, ours])

    assert results == {ours.event_id: {}}
    await life.until_stored([ours])
    assert life.ours.query("SELECT 1 FROM events WHERE room_id = :r", r=other.room_id) == []
    life.release_resync()


@pytest.mark.parametrize(
    "body",
    [
        {"pdus": [{}] * 51},
        {"edus": [{}] * 101},
        {"pdus": {}},
        {"origin": "another.test", "pdus": []},
    ],
)
async def test_malformed_and_oversized_transactions(
    body: object, life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    sender = simulated.residents[0].identity
    status, answer = await life.request(sender, "PUT", SEND + "1", body)
    assert status in (400, 403)
    assert answer["errcode"].startswith("M_")


async def test_a_flood_of_one_server_does_not_keep_others_out(
    life_on_sqlite: Life, simulated: SimulatedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    flooder = simulated.residents[0].identity
    events = [room.message(str(number)) for number in range(50)]
    pdus = [room.pdu(event.event_id) for event in events]

    async def flood(number: int) -> int:
        body = {"origin": flooder.server_name, "origin_server_ts": 1, "pdus": pdus}
        status, answer = await life.request(flooder, "PUT", f"{SEND}flood{number}", body)
        if status == 429:
            assert answer["errcode"] == "M_LIMIT_EXCEEDED"
            assert answer["retry_after_ms"] > 0
        return status

    flooding = asyncio.gather(*(flood(number) for number in range(40)))
    other = room.message("From another server", sender=remote_user(life, room, 1))
    async with asyncio.timeout(20):
        await life.push([other], by=1)
    statuses = await flooding

    assert statuses.count(200) >= 1
    assert statuses.count(429) >= 40 - 2 * transactions.TRANSACTIONS_PER_ORIGIN - 10
    await life.until_stored([*events, other])
    # What waits of one server is bounded, too.
    monkeypatch.setattr(transactions, "MAX_STAGED_PER_ORIGIN", -1)
    assert await flood(1000) == 429
    life.release_resync()


async def test_a_server_whose_events_lack_much_holds_up_nobody_else(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Nobody gives what its events name. Others, and our own users, go on in the same room."""
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    user = remote_user(life, room)
    room.rename(user, "Never sent")
    lacking = [room.message(str(number), sender=user) for number in range(3)]
    silent = simulated.residents
    for resident in silent:
        resident.faults.stall("event")
        resident.faults.stall("get_missing_events")
    assert set(await life.push(lacking)) == {event.event_id for event in lacking}
    await silent[0].requests.wait_for("get_missing_events")

    other = room.message("From another server", prev_events=sorted(life.graph()))
    async with asyncio.timeout(10):
        await life.receive([other], by=1)
        await life.worker.creator.send(room.room_id, life.alice, "m.room.message", {"body": "I"})

    assert set(life.staged()) == {event.event_id for event in lacking}
    for resident in silent:
        resident.faults.clear()
    await life.until_stored(lacking)


async def test_what_comes_in_is_counted_and_edus_are_left_alone(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    """The answer speaks of events only: nothing is said about what is ephemeral."""
    life = life_on_sqlite
    room, other = make_room(simulated), make_room(simulated)
    user = remote_user(life, room)
    life.hold_resync()
    join = await life.join(room)
    sender = simulated.residents[0].identity
    good = room.message("Good", prev_events=[join])
    rejected = room.set_topic("Rejected", sender=user, prev_events=[join], rejected=True)
    refused = room.message(
        "Refused", prev_events=[join], signers=[derive_identity("stranger.test", 99)]
    )
    pdus = [room.pdu(event.event_id) for event in (good, rejected, refused)]
    typing = {
        "edu_type": "m.typing",
        "content": {"room_id": room.room_id, "user_id": user, "typing": True},
    }
    body = {
        "origin": sender.server_name,
        "origin_server_ts": 1,
        "pdus": [*pdus, other.pdu(other.message("Not for you").event_id)],
        "edus": [typing, {"edu_type": 7}, None],
    }

    status, answer = await life.request(sender, "PUT", SEND + "counted", body)
    assert await life.request(sender, "PUT", SEND + "counted", body) == (status, answer)
    await life.until_stored([good, rejected])
    await until(lambda: not life.staged())

    assert status == 200
    assert answer.keys() == {"pdus"}
    assert answer["pdus"].keys() == {good.event_id, rejected.event_id, refused.event_id}
    shown = life.worker.metrics.render().decode().splitlines()
    for line in (
        'resync_inbound_transactions_total{result="taken"} 1.0',
        'resync_inbound_transactions_total{result="repeated"} 1.0',
        'resync_inbound_pdus_total{result="accepted"} 1.0',
        'resync_inbound_pdus_total{result="rejected"} 1.0',
        'resync_inbound_pdus_total{result="refused"} 1.0',
        'resync_inbound_pdus_total{result="ignored"} 1.0',
        "resync_inbound_edus_total 3.0",
    ):
        assert line in shown, line
    await life.worker.creator.send(room.room_id, life.alice, "m.room.message", {"body": "Mine"})
    sent = 'resync_outgoing_pdus_total{result="accepted"} 2.0'
    await until(lambda: sent in life.worker.metrics.render().decode().splitlines())
    life.release_resync()


async def test_event_ids_from_strangers_are_only_data(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    await life.join(room)
    sender = simulated.residents[0].identity
    for event_id in ("$%00", "$'; DROP TABLE events; --", "$" + "x" * 1000, "%F0%9F%98%80"):
        status, _ = await life.request(sender, "GET", target("v1/event", event_id))
        assert status == 404
    status, _ = await life.request(
        sender,
        "POST",
        target("v1/get_missing_events", room.room_id),
        {"earliest_events": ["$\0"], "latest_events": ["$\0" * 2], "limit": 10**30},
    )
    assert status in (200, 400, 401)
    life.release_resync()
