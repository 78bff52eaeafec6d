"""What our server answers others while it has only part of a room's state."""

from __future__ import annotations

import pytest

from federation.simulator import SimulatedFederation
from tests.integration.resync.life.life import Life, target
from tests.integration.resync.life.test_receiving import make_room

UNABLE = "ORG.MATRIX.MSC3895_UNABLE_DUE_TO_PARTIAL_STATE"


@pytest.mark.parametrize("name", ["make_join", "send_join", "make_knock", "send_knock"])
async def test_rejects_during_the_partial_join(
    name: str, life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    resident = simulated.residents[1].identity
    user = f"@new:{resident.server_name}"

    if name.startswith("make"):
        answer = await life.request(resident, "GET", target(f"v1/{name}", room.room_id, user))
    else:
        version = "v2" if name == "send_join" else "v1"
        path = target(f"{version}/{name}", room.room_id, "$event")
        answer = await life.request(resident, "PUT", path, room.pdu(join))

    assert answer[0] == 404
    assert answer[1]["errcode"] == UNABLE
    life.release_resync()


async def test_state_is_not_told_during_the_partial_join(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    resident = simulated.residents[0].identity
    for endpoint in ("state", "state_ids"):
        path = target(f"v1/{endpoint}", room.room_id) + f"?event_id=%24{join[1:]}"
        status, body = await life.request(resident, "GET", path)
        assert (status, body["errcode"]) == (404, UNABLE)
    life.release_resync()


async def test_answers_what_is_known_during_the_partial_join(
    life: Life, simulated: SimulatedFederation
) -> None:
    room = make_room(simulated)
    life.hold_resync()
    join = await life.join(room)
    events = [room.message(str(number)) for number in range(4)]
    await life.receive(events)
    resident = simulated.residents[1].identity

    status, body = await life.request(resident, "GET", target("v1/event", events[0].event_id))
    assert status == 200
    assert body["pdus"] == [room.pdu(events[0].event_id)]

    status, body = await life.request(
        resident,
        "POST",
        target("v1/get_missing_events", room.room_id),
        {
            "earliest_events": [join],
            "latest_events": [events[3].event_id],
            "limit": 10,
            "min_depth": 0,
        },
    )
    assert status == 200
    assert body["events"] == [room.pdu(event.event_id) for event in events[:3]]

    path = target("v1/backfill", room.room_id) + f"?v=%24{events[2].event_id[1:]}&limit=3"
    status, body = await life.request(resident, "GET", path)
    assert status == 200
    assert body["pdus"] == [room.pdu(event.event_id) for event in reversed(events[:3])]

    status, body = await life.request(resident, "GET", target("v1/event", "$unknown"))
    assert (status, body["errcode"]) == (404, "M_NOT_FOUND")
    life.release_resync()


async def test_a_server_outside_the_room_is_told_nothing(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = simulated.create_room("10")
    life.hold_resync()
    join = await life.join(room)
    outsider = simulated.residents[1].identity

    status, body = await life.request(outsider, "GET", target("v1/event", join))

    assert (status, body["errcode"]) == (403, "M_FORBIDDEN")
    life.release_resync()


async def test_server_acls_are_honoured(
    life_on_sqlite: Life, simulated: SimulatedFederation
) -> None:
    life = life_on_sqlite
    room = make_room(simulated)
    room.send_state("m.room.server_acl", {"allow": ["*"], "deny": ["127.0.0.1"]})
    life.hold_resync()
    join = await life.join(room)
    message = room.message("Denied")

    results = await life.push([message])

    assert "ACL" in results[message.event_id]["error"]
    assert life.staged() == []
    resident = simulated.residents[0].identity
    status, _ = await life.request(resident, "GET", target("v1/event", join))
    assert status == 403
    life.release_resync()


async def test_history_is_shown_as_the_room_wants_it(
    life: Life, simulated: SimulatedFederation
) -> None:
    """Only members see what happens: a server that came late does not see what was before."""
    room = simulated.create_room("10", history_visibility="joined")
    life.hold_resync()
    await life.join(room)
    before = room.message("Before you came")
    late = f"@late:{simulated.server_names[1]}"
    joined = room.join(late)
    after = room.message("After you came")
    await life.receive([before, joined, after])

    async def seen(by: int) -> list[str]:
        path = target("v1/backfill", room.room_id) + f"?v=%24{after.event_id[1:]}&limit=3"
        identity = simulated.residents[by].identity
        status, body = await life.request(identity, "GET", path)
        assert status == 200
        everything = {event.event_id: room.pdu(event.event_id) for event in (before, joined, after)}
        return [i for i, pdu in everything.items() if pdu in body["pdus"]]

    # In partial state nothing is known for sure but who was there when we joined.
    assert await seen(0) == [before.event_id, joined.event_id, after.event_id]
    assert await seen(1) == []
    life.release_resync()
    await life.until_full(room)
    assert await seen(1) == [joined.event_id, after.event_id]
    identity = simulated.residents[1].identity
    status, _ = await life.request(identity, "GET", target("v1/event", before.event_id))
    assert status == 404
