"""The harness itself: what the other tests take for granted about their Synapse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from tests.interop.loopback import ApiError
from tests.interop.rooms import MEMBERS, build_busy_room, register_members
from tests.interop.synapse_server import SynapseError, SynapseServer


def test_a_synapse_on_postgresql_starts_serves_and_leaves_nothing(
    tmp_path: Path, postgresql_url: str
) -> None:
    def databases() -> set[str]:
        with psycopg.connect(postgresql_url) as connection:
            rows = connection.execute("SELECT datname FROM pg_database").fetchall()
        return {name for (name,) in rows}

    with SynapseServer(tmp_path, postgresql_url=postgresql_url) as synapse:
        dsn = synapse.config["database"]["args"]["dsn"]
        name = urlsplit(dsn).path[1:]
        assert name in databases()
        creator = synapse.register("creator")
        members = register_members(synapse)

        room_id = build_busy_room(creator, members, "10")

        events = creator.request("GET", f"/rooms/{quote(room_id)}/members")["chunk"]
        memberships = Counter(event["content"]["membership"] for event in events)
        assert memberships.total() == MEMBERS + 1
        assert {"join", "leave", "ban", "invite", "knock"} == set(memberships)
        assert creator.get_state(room_id, "m.room.create")["room_version"] == "10"
        with pytest.raises(ApiError) as refused:
            members[-1].send_state(room_id, "m.room.name", {"name": "not mine to change"})
        assert refused.value.status == 403
    assert name not in databases()
    with pytest.raises(OSError, match="refused"):
        synapse.request("GET", "/_matrix/client/versions")


def test_a_synapse_that_cannot_start_shows_why(tmp_path: Path) -> None:
    with (
        pytest.raises(SynapseError, match="no_such_database_module"),
        SynapseServer(tmp_path, extra_config={"database": {"name": "no_such_database_module"}}),
    ):
        pass
