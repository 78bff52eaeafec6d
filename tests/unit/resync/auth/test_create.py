"""Rule 1: `m.room.create`."""

from __future__ import annotations

from typing import Any

import pytest

from federation.room_versions import ROOM_VERSIONS
from tests.unit.resync.auth.room import CREATOR, Room, versions

ALL = versions(1)


def verdict(room_version: str, content: dict[str, Any], **more: Any) -> str:
    room = Room(room_version)
    more.setdefault("room_id", "" if int(room_version) >= 12 else "!new:a.example")
    if not ROOM_VERSIONS[room_version].implicit_room_creator:
        content = {"creator": CREATOR, **content}
    return room.verdict(room.event(CREATOR, "m.room.create", content, "", **more))


@pytest.mark.parametrize("room_version", ALL)
def test_a_plain_create_event_is_allowed(room_version: str) -> None:
    assert verdict(room_version, {"room_version": room_version}) == ""
    assert verdict(room_version, {}) == ""


@pytest.mark.parametrize("room_version", ALL)
def test_1_1_prev_events(room_version: str) -> None:
    assert verdict(room_version, {}, prev_events=("$before:a.example",)) == "1.1"


@pytest.mark.parametrize("room_version", versions(1, 11))
@pytest.mark.parametrize("room_id", ["!new:b.example", "!new:a.example:1", "!new"])
def test_1_2_the_room_is_of_the_senders_server(room_version: str, room_id: str) -> None:
    assert verdict(room_version, {}, room_id=room_id) == "1.2"


def test_1_2_version_12_has_no_room_id() -> None:
    assert verdict("12", {}, room_id="!new:a.example") == "1.2"


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("named", ["0", "13", "", "org.example.own", 1, None, [], {}])
def test_1_3_unknown_room_version(room_version: str, named: Any) -> None:
    assert verdict(room_version, {"room_version": named}) == "1.3"


@pytest.mark.parametrize("room_version", versions(1, 10))
def test_1_4_no_creator(room_version: str) -> None:
    room = Room(room_version)
    assert room.verdict(room.event(CREATOR, "m.room.create", {}, "")) == "1.4"


@pytest.mark.parametrize(
    "additional", [None, "@a:b", {}, [1], ["a:b"], ["@a"], ["@a:b", "@" * 300]]
)
def test_1_4_version_12_additional_creators(additional: Any) -> None:
    assert verdict("12", {"additional_creators": additional}) == "1.4"
    assert verdict("11", {"additional_creators": additional}) == ""


@pytest.mark.parametrize("additional", [[], ["@a:b.example"], ["@a:b.example", "@c:d"]])
def test_additional_creators_are_allowed(additional: list[str]) -> None:
    assert verdict("12", {"additional_creators": additional}) == ""


def test_1_4_additional_creators_are_bounded_like_senders() -> None:
    assert verdict("12", {"additional_creators": ["@" + "ü" * 127 + ":b"]}) == "1.4"
