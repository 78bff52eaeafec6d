"""Where Synapse and the specification part, and we follow the specification.

The random histories leave these cases out. Each test fails as soon as either side changes.
"""

from __future__ import annotations

from typing import Any

import pytest

from federation.events import Event, StateKey
from resync import auth
from tests.histories import make_event
from tests.interop.synapse_oracle import SynapseOracle

ALICE, BOB = "@alice:a.example", "@bob:b.example"
ROOM_ID = "!room:a.example"
LEVELS = {"users": {ALICE: 100}, "ban": 50}
State = dict[StateKey, str]


class Room:
    """A linear room of Alice's. Every event cites what the selection algorithm says."""

    def __init__(self, room_version: str, **create_content: Any) -> None:
        self.room_version = room_version
        self.events: dict[str, Event] = {}
        self.state: State = {}
        content = {"room_version": room_version, "creator": ALICE, **create_content}
        self.add(ALICE, "m.room.create", "", content)
        self.add(ALICE, "m.room.member", ALICE, {"membership": "join"})

    def add(
        self, sender: str, event_type: str, state_key: str, content: dict[str, Any]
    ) -> tuple[Event, State]:
        """Adds a state event; returns it and the state before it."""
        before = dict(self.state)
        draft = {
            "type": event_type,
            "sender": sender,
            "state_key": state_key,
            "content": content,
        }
        number = len(self.events)
        version = next(iter(self.events.values())).room_version if self.events else None
        event = make_event(
            self.room_version,
            ROOM_ID,
            sender,
            event_type,
            content,
            state_key=state_key,
            prev_events=list(self.events)[-1:],
            auth_events=auth.select_auth_events(version, draft, before) if version else [],
            depth=number + 1,
            origin_server_ts=number,
            event_id=f"${number}:a.example" if self.room_version in ("1", "2") else None,
        )
        self.events[event.event_id] = event
        self.state[event.key] = event.event_id
        return event, before

    def our_rule(self, event: Event, before: State) -> str:
        """The number of the rule by which we reject the event, "" if we accept it."""
        try:
            auth.check_auth_rules(event, {key: self.events[e] for key, e in before.items()})
        except auth.NotAuthorised as error:
            return error.rule
        return ""

    def synapses_reason(self, oracle: SynapseOracle, event: Event, before: State) -> str:
        """Why Synapse rejects the event, "" if it accepts it."""
        oracle.load_room(self.room_version, self.events.values())
        (verdict,) = oracle.verdicts([(event.event_id, before)])
        return verdict.reason


@pytest.mark.parametrize("room_version", ["1", "6", "10", "11"])
@pytest.mark.parametrize("membership", ["ban", "invite"])
def test_synapse_also_minds_the_server_of_the_target_in_a_room_that_does_not_federate(
    room_version: str, membership: str, oracle: SynapseOracle
) -> None:
    """The rule: "If the content of the m.room.create event in the room state has the property
    m.federate set to false, and the sender domain of the event does not match the sender domain
    of the create event, reject." It has no word on the target of a membership change.
    """
    room = Room(room_version, **{"m.federate": False})

    event, before = room.add(ALICE, "m.room.member", BOB, {"membership": membership})

    assert room.our_rule(event, before) == ""
    assert "unfederatable" in room.synapses_reason(oracle, event, before)


@pytest.mark.parametrize("room_version", ["1", "5", "6", "9"])
@pytest.mark.parametrize("level", ["5_0", True], ids=repr)
def test_synapse_reads_levels_that_are_neither_integers_nor_written_as_one(
    room_version: str, level: Any, oracle: SynapseOracle
) -> None:
    """A level that is a string is "a single base 10 integer, no float values or decimal points,
    optionally with any number of leading zeroes", with a sign and whitespace around it: no
    underscores. A boolean is not an integer-valued property.
    """
    room = Room(room_version)
    # Only a change of power levels is looked at in full.
    room.add(ALICE, "m.room.power_levels", "", LEVELS)

    event, before = room.add(ALICE, "m.room.power_levels", "", {**LEVELS, "ban": level})

    assert room.our_rule(event, before) != ""
    assert room.synapses_reason(oracle, event, before) == ""


@pytest.mark.parametrize("room_version", ["1", "5", "6", "9"])
@pytest.mark.parametrize("level", ["50", " +50 ", "-0050"], ids=repr)
def test_levels_written_as_strings_are_read_alike(
    room_version: str, level: str, oracle: SynapseOracle
) -> None:
    room = Room(room_version)
    # Only a change of power levels is looked at in full.
    room.add(ALICE, "m.room.power_levels", "", LEVELS)

    event, before = room.add(ALICE, "m.room.power_levels", "", {**LEVELS, "ban": level})

    assert room.our_rule(event, before) == ""
    assert room.synapses_reason(oracle, event, before) == ""
