import json
import pickle

import pytest

from federation.errors import InvalidEvent, UnknownRoomVersion
from federation.events import Event, StateKey
from federation.hashing import compute_event_id
from federation.room_versions import ROOM_VERSIONS


def make_pdu(**fields):
    return {
        "type": "m.room.member",
        "state_key": "@a:x",
        "sender": "@a:x",
        "room_id": "!r:x",
        "content": {"membership": "join"},
        "auth_events": ["$1", "$2"],
        "prev_events": ["$3"],
        "depth": 7,
        "origin_server_ts": 12,
        **fields,
    }


def test_fields():
    pdu = make_pdu()
    event = Event.from_pdu(pdu, "10")
    assert event.event_id == compute_event_id(pdu, ROOM_VERSIONS["10"])
    assert (event.type, event.sender, event.room_id) == ("m.room.member", "@a:x", "!r:x")
    assert (event.depth, event.origin_server_ts) == (7, 12)
    assert event.content == {"membership": "join"}
    assert event.auth_event_ids == ("$1", "$2")
    assert event.prev_event_ids == ("$3",)
    assert event.room_version is ROOM_VERSIONS["10"]
    assert event.is_state
    assert event.key == ("m.room.member", "@a:x") == StateKey("m.room.member", "@a:x")
    assert {("m.room.member", "@a:x"): 1}[event.key] == 1
    assert json.loads(event.json) == pdu


def test_short_fixtures_are_enough():
    pdu = {"type": "t", "sender": "@a:x", "content": {}, "room_id": "!r:x"}
    event = Event.from_pdu(pdu, "10", event_id="$known")
    assert (event.event_id, event.depth, event.origin_server_ts) == ("$known", 0, 0)
    assert event.auth_event_ids == event.prev_event_ids == ()
    assert not event.is_state
    with pytest.raises(ValueError, match="not a state event"):
        _ = event.key


def test_references_of_versions_1_and_2_are_pairs():
    references = [["$1:x", {"sha256": "h"}], ["$2:x", {}], ["$1:x", {}]]
    pdu = make_pdu(event_id="$0:x", auth_events=references, prev_events=[])
    event = Event.from_pdu(pdu, "2")
    assert event.event_id == "$0:x"
    assert event.auth_event_ids == ("$1:x", "$2:x")


def test_duplicate_references_count_once_in_order():
    event = Event.from_pdu(make_pdu(prev_events=["$b", "$a", "$b"]), "10")
    assert event.prev_event_ids == ("$b", "$a")


def test_room_id_of_a_version_12_create_event_follows_from_its_id():
    pdu = make_pdu(type="m.room.create", state_key="", auth_events=[], prev_events=[])
    del pdu["room_id"]
    event = Event.from_pdu(pdu, "12")
    assert event.room_id == "!" + event.event_id[1:]
    assert Event.from_pdu(pdu, "12", event_id="$given").room_id == "!given"
    with pytest.raises(InvalidEvent, match="room_id"):
        Event.from_pdu(pdu, "11")
    # Only the room's own create event is without: this one has another state key.
    with pytest.raises(InvalidEvent, match="room_id"):
        Event.from_pdu({**pdu, "state_key": "x"}, "12")


def test_json_is_the_text_as_received_where_it_was_kept():
    text = ' {"received": "as is"} '
    assert Event.from_pdu(make_pdu(), "10", json_text=text).json == text
    assert "é" in Event.from_pdu(make_pdu(content={"a": "é"}), "10").json


def test_json_can_be_stored_whatever_is_in_unsigned():
    event = Event.from_pdu(make_pdu(unsigned={"a": "é\ud800"}), "10")
    assert json.loads(event.json.encode("utf-8")) == event.pdu


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", None),
        ("type", 5),
        ("sender", ["@a:x"]),
        ("content", None),
        ("content", []),
        ("content", "text"),
        ("state_key", 1),
        ("room_id", None),
        ("room_id", 5),
        ("depth", "7"),
        ("depth", 7.0),
        ("depth", True),
        ("origin_server_ts", None),
        ("origin_server_ts", False),
        ("auth_events", {}),
        ("auth_events", "$1"),
        ("auth_events", None),
        ("auth_events", [1]),
        ("auth_events", [["$1", {}]]),
        ("prev_events", [None]),
    ],
)
def test_wrong_types_are_refused(field, value):
    with pytest.raises(InvalidEvent, match=field):
        Event.from_pdu(make_pdu(**{field: value}), "10", event_id="$x")


@pytest.mark.parametrize("references", [[1], [[]], [{}], [[5, {}]], [None]])
def test_wrong_pairs_are_refused(references):
    with pytest.raises(InvalidEvent, match="auth_events"):
        Event.from_pdu(make_pdu(event_id="$0:x", auth_events=references), "1")


@pytest.mark.parametrize("field", ["type", "sender", "content", "room_id"])
def test_missing_fields_are_named(field):
    pdu = make_pdu()
    del pdu[field]
    with pytest.raises(InvalidEvent, match=f"{field} is missing"):
        Event.from_pdu(pdu, "10", event_id="$x")


@pytest.mark.parametrize("pdu", [None, 5, "text", [], [1]])
def test_what_is_no_object_is_refused(pdu):
    with pytest.raises(InvalidEvent, match="object"):
        Event.from_pdu(pdu, "10")


def test_other_refusals():
    with pytest.raises(InvalidEvent, match="event_id"):
        Event.from_pdu(make_pdu(auth_events=[], prev_events=[]), "1")
    with pytest.raises(InvalidEvent, match="surrogate"):
        Event.from_pdu(make_pdu(sender="\ud800"), "10")
    with pytest.raises(UnknownRoomVersion):
        Event.from_pdu(make_pdu(), "99")


def test_events_survive_a_trip_to_another_process():
    event = Event.from_pdu(make_pdu(), "10", json_text="{}")
    copied = pickle.loads(pickle.dumps(event))
    assert all(getattr(copied, name) == getattr(event, name) for name in Event.__slots__)
    assert copied.room_version is event.room_version


def test_repr_names_the_event():
    assert repr(Event.from_pdu(make_pdu(), "10", event_id="$x")) == (
        "<Event $x m.room.member/'@a:x' in !r:x>"
    )
