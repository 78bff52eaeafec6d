"""A partial join of a room on a real Synapse, and its resync to the full state."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.interop.our_server import OurServer
from tests.interop.rooms import build_busy_room
from tests.interop.synapse_server import SynapseServer, User


@pytest.mark.parametrize("room_version", ["10", "11", "12"])
def test_the_resynced_state_is_what_synapse_has(
    room_version: str,
    synapse: SynapseServer,
    creator: User,
    members: list[User],
    our_database_url: str,
    tmp_path: Path,
) -> None:
    room_id = build_busy_room(creator, members, room_version)
    ours = OurServer(tmp_path, our_database_url)

    join(ours, synapse, room_id)

    join_event_id = check_room_went_through_partial_state(ours, synapse, room_id)
    check_state_is_synapses(ours, synapse, creator, room_id, join_event_id)


def test_the_keys_of_a_vanished_server_come_from_the_resident_as_notary(
    synapse: SynapseServer,
    creator: User,
    members: list[User],
    our_database_url: str,
    tmp_path: Path,
) -> None:
    room_id = build_busy_room(creator, members, "11")
    directories = (tmp_path / "vanished", tmp_path / "joining")
    for directory in directories:
        directory.mkdir()
    # It joins and stops: nobody serves its key any more, but its member event stays in the room.
    vanished = OurServer(directories[0], f"sqlite:///{directories[0] / 'resync.db'}")
    join(vanished, synapse, room_id)
    ours = OurServer(
        directories[1],
        our_database_url,
        {"federation": {"trusted_key_servers": [synapse.server_name]}},
    )

    join(ours, synapse, room_id)

    join_event_id = check_room_went_through_partial_state(ours, synapse, room_id)
    check_state_is_synapses(ours, synapse, creator, room_id, join_event_id)
    assert ("m.room.member", vanished.user_id()) in ours.current_state(room_id)


def join(ours: OurServer, synapse: SynapseServer, room_id: str) -> None:
    ours.run("migrate")
    ours.run("join", room_id, "--via", synapse.server_name, "--user", ours.user_id(), "--wait")


def check_room_went_through_partial_state(
    ours: OurServer, synapse: SynapseServer, room_id: str
) -> str:
    """Checks that the join was partial and no longer is; returns the join event's id."""
    status = ours.status(room_id)
    assert status["state"] == "complete"
    assert status["joined_via"] == synapse.server_name
    assert status["partial_events"] == 0
    ((join_event_id,),) = ours.query(
        "SELECT event_id FROM room_memberships"
        " WHERE room_id = :room_id AND user_id = :user_id AND membership = 'join'",
        room_id=room_id,
        user_id=ours.user_id(),
    )
    # Only a room that was in partial state is ever announced on these streams.
    announced = ours.query(
        "SELECT room_id FROM un_partial_stated_room_stream WHERE room_id = :room_id",
        room_id=room_id,
    )
    assert announced == [(room_id,)]
    announced = ours.query(
        "SELECT event_id FROM un_partial_stated_event_stream WHERE event_id = :event_id",
        event_id=join_event_id,
    )
    assert announced == [(join_event_id,)]
    for table in ("partial_state_rooms", "partial_state_rooms_servers", "partial_state_events"):
        assert ours.query(f"SELECT room_id FROM {table}") == []
    # Synapse logs every request it answered.
    requests = [line for line in synapse.log_lines() if ours.server_name in line]
    assert any(
        "/send_join/" + quote(room_id) in line and "omit_members=true" in line for line in requests
    )
    return str(join_event_id)


def check_state_is_synapses(
    ours: OurServer, synapse: SynapseServer, local_user: User, room_id: str, join_event_id: str
) -> None:
    """Checks the state at our join, the newest event of the room, against Synapse's."""
    expected = local_user.room_state(room_id)
    assert expected["m.room.member", ours.user_id()] == join_event_id
    memberships = local_user.request("GET", f"/rooms/{quote(room_id)}/members")["chunk"]
    assert {event["content"]["membership"] for event in memberships} == {
        "join",
        "leave",
        "invite",
        "ban",
        "knock",
    }

    assert ours.state_after(join_event_id) == expected
    assert ours.current_state(room_id) == expected

    peer = ours.peer(synapse)
    try:
        before_join = peer.state_ids(room_id, join_event_id)
    finally:
        peer.close()
    assert {*before_join, join_event_id} == set(expected.values())

    with_json = ours.query("SELECT event_id FROM event_json WHERE room_id = :r", r=room_id)
    assert set(expected.values()) <= {event_id for (event_id,) in with_json}
    rejected = ours.query("SELECT event_id FROM rejections")
    assert not {event_id for (event_id,) in rejected} & set(expected.values())
