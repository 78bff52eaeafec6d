"""The two orderings, from their definitions."""

from __future__ import annotations

from typing import Any

from federation.events import Event
from federation.room_versions import ROOM_VERSIONS
from resync.state.auth_graph import AuthGraph
from resync.state.ordering import sender_level, sort_by_mainline, sort_power_events
from tests.unit.resync.state.branches import ALICE, BOB, CREATOR, Branch, new_room


def graph_of(room: Branch) -> AuthGraph:
    return AuthGraph(room.version, room.events, "!create")


class TestReverseTopologicalPowerOrdering:
    def order(self, room: Branch, event_ids: list[str]) -> list[str]:
        chosen = {event_id: room.events[event_id] for event_id in event_ids}
        forwards = sort_power_events(graph_of(room), chosen.values(), chosen)
        turned = dict(reversed(chosen.items()))
        assert forwards == sort_power_events(graph_of(room), turned.values(), turned)
        return [event.event_id for event in forwards]

    def test_auth_events_come_first_whatever_else(self) -> None:
        room = new_room("10", power_levels={ALICE: 50})
        room.membership(ALICE, "join")
        first = room.power_levels({ALICE: 49}, by=ALICE, ts=900)
        second = room.power_levels({ALICE: 49}, by=CREATOR, ts=1)
        assert self.order(room, [second, first]) == [first, second]

    def test_then_power_then_time_then_id(self) -> None:
        room = new_room("10", power_levels={ALICE: 50})
        room.membership(ALICE, "join")
        chosen = [
            room.fork().join_rule("public", by=CREATOR, ts=20, event_id="$d"),
            room.fork().join_rule("public", by=CREATOR, ts=30, event_id="$b"),
            room.fork().join_rule("public", by=CREATOR, ts=30, event_id="$c"),
            room.fork().join_rule("public", by=ALICE, ts=10, event_id="$a"),
        ]
        assert self.order(room, chosen) == chosen

    def test_events_in_the_auth_chain_join_in_if_they_are_conflicted(self) -> None:
        room = new_room("10", power_levels={})
        joined = room.membership(ALICE, "join")
        ban = room.membership(ALICE, "ban", by=CREATOR)
        chosen = {ban: room.events[ban], joined: room.events[joined]}
        ordered = sort_power_events(graph_of(room), [room.events[ban]], chosen)
        assert [event.event_id for event in ordered] == [joined, ban]

    def test_circles_and_what_rests_on_them_are_left_out(self) -> None:
        room = new_room("2", power_levels={})
        x = room.fork().join_rule("public", event_id="$x", auth_events=["$y"])
        y = room.fork().join_rule("public", event_id="$y", auth_events=["$x"])
        z = room.fork().join_rule("public", event_id="$z", auth_events=["$x"])
        fine = room.fork().join_rule("public")
        assert self.order(room, [x, y, z, fine]) == [fine]


class TestSenderLevel:
    def level(self, room: Branch, sender: str) -> Any:
        return sender_level(graph_of(room), room.events[room.topic(sender)])

    def test_by_the_power_levels_among_the_auth_events(self) -> None:
        room = new_room("10", power_levels={ALICE: 50})
        assert self.level(room, CREATOR) == 100
        assert self.level(room, ALICE) == 50
        assert self.level(room, BOB) == 0
        room.send(CREATOR, "m.room.power_levels", {"users_default": 7})
        assert self.level(room, BOB) == 7

    def test_without_power_levels(self) -> None:
        room = new_room("10")
        assert self.level(room, CREATOR) == 100
        assert self.level(room, ALICE) == 0

    def test_creators_of_version_12(self) -> None:
        room = new_room("12", power_levels={ALICE: 2**53 - 1})
        assert self.level(room, CREATOR) > self.level(room, ALICE) == 2**53 - 1

    def test_what_cannot_be_read_is_0(self) -> None:
        room = new_room("9", power_levels={})
        for users in ({ALICE: "x"}, {ALICE: []}, None, [], "x"):
            room.send(CREATOR, "m.room.power_levels", {"users": users})
            assert self.level(room, ALICE) == 0
        del room.events["$create"]
        assert self.level(room, CREATOR) == 0


class TestMainlineOrdering:
    def order(self, room: Branch, event_ids: list[str], power_levels: str | None) -> list[str]:
        events = [room.events[event_id] for event_id in event_ids]
        ordered = sort_by_mainline(graph_of(room), events, power_levels)
        assert ordered == sort_by_mainline(graph_of(room), events[::-1], power_levels)
        return [event.event_id for event in ordered]

    def test_the_earlier_on_the_mainline_first_then_time_then_id(self) -> None:
        room = new_room("10")
        nowhere = room.topic(CREATOR, ts=50)
        room.power_levels({})
        first = [
            room.topic(CREATOR, ts=40),
            room.topic(CREATOR, ts=41, event_id="$a"),
            room.topic(CREATOR, ts=41, event_id="$b"),
        ]
        room.power_levels({})
        aside = room.fork()
        third = room.power_levels({})
        # What rests on power levels beside the mainline counts from where those left it.
        aside.power_levels({ALICE: 1})
        beside = aside.topic(CREATOR, ts=30)
        last = room.topic(CREATOR, ts=1)
        expected = [nowhere, *first, beside, last]
        assert self.order(room, expected[::-1], third) == expected

    def test_without_power_levels_all_are_equal_but_for_time(self) -> None:
        room = new_room("10", power_levels={})
        ids = [room.topic(CREATOR, ts=ts) for ts in (3, 1, 2)]
        assert self.order(room, ids, None) == [ids[1], ids[2], ids[0]]

    def test_power_levels_are_placed_by_those_before_them(self) -> None:
        """The event itself is not looked for on the mainline: j is at least 1."""
        room = new_room("10", power_levels={})
        first = room.power_levels({})
        second = room.power_levels({})
        topic = room.topic(CREATOR, ts=0)
        assert self.order(room, [topic, second, first], second) == [first, second, topic]

    def test_circles_end(self) -> None:
        room = new_room("2", power_levels={})
        one = room.fork().power_levels({}, event_id="$x", auth_events=["$y"])
        room.fork().power_levels({}, event_id="$y", auth_events=["$x"])
        topic = room.topic(CREATOR, auth_events=["$y"])
        other = room.topic(CREATOR, auth_events=["$create"])
        assert self.order(room, [topic, other], one) == [other, topic]
        assert self.order(room, [topic, other], None) == [topic, other]

    def test_unknown_events_are_passed_over(self) -> None:
        room = new_room("10", power_levels={})
        topic = room.topic(CREATOR, auth_events=["$gone", *room.state.values()])
        assert self.order(room, [topic], "$gone") == [topic]


def test_orderings_take_nothing_for_granted() -> None:
    empty = AuthGraph(ROOM_VERSIONS["10"], {}, None)
    assert sort_power_events(empty, [], {}) == []
    assert sort_by_mainline(empty, [], None) == []
    pdu = {"type": "t", "sender": "@a:b", "content": {}, "room_id": "!r"}
    event = Event.from_pdu(pdu, "10", event_id="$e")
    assert sort_by_mainline(empty, [event], "$unknown") == [event]
