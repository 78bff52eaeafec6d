import pytest

from resync.progress import Phase, RoomProgress
from resync.status_text import describe_room, describe_rooms, progress_of
from storage.jobs import GivenUp, Job

NOW = 1_700_000_000_000


@pytest.fixture
def room():
    def room(state: str, **changes) -> Job:
        return Job(
            **{
                "room_id": "!r:example.com",
                "state": state,
                "room_version": "10",
                "joined_via": "hs1",
                "join_event_id": "$join",
                "partial_events": 3,
                "servers": 2,
                "phase": "walking",
                "done": 1,
                "total": 3,
                "attempts": 0,
                "created_ts": NOW - 5_300,
                "completed_ts": None,
                "next_attempt_ts": NOW,
                "last_error": None,
                "last_error_server": None,
                "running_on": None,
                "updated_ts": NOW,
                "given_up": (),
            }
            | changes
        )

    return room


def test_a_running_room(room):
    assert describe_room(room("running", running_on="resync1"), NOW) == [
        "!r:example.com  running  walking 1/3 (33 %)",
        "    3 partial events, 2 servers, joined through hs1",
        "    worker: resync1",
    ]


def test_a_room_in_backoff_says_why_and_until_when(room):
    waiting = room(
        "backoff",
        attempts=4,
        next_attempt_ts=NOW + 300_000,
        last_error="refused \x1b[2J",
        last_error_server="hs1",
    )
    assert describe_room(waiting, NOW)[2:] == [
        "    last error at hs1: refused �[2J",
        "    next attempt in 5 min (2023-11-14 22:18:20 UTC)",
        "    failures in a row: 4",
    ]
    assert describe_room(waiting, NOW + 290_000)[3].startswith("    next attempt in 10 s (")
    assert describe_room(waiting, NOW + 400_000)[3] == "    next attempt now"


def test_a_complete_room_says_how_long_it_took(room):
    done = room(
        "complete",
        completed_ts=NOW,
        partial_events=0,
        last_error="old",
        given_up=(GivenUp("$a", "404"), GivenUp("$b", "404")),
    )
    assert describe_room(done, NOW) == [
        "!r:example.com  complete after 5.3 s",
        "    0 partial events, 2 servers, joined through hs1",
        "    given up, no server could deliver them: 2 events",
    ]


def test_a_queued_room_without_a_total(room):
    queued = room("queued", phase="", done=0, total=None, joined_via=None)
    assert describe_room(queued, NOW) == [
        "!r:example.com  queued",
        "    3 partial events, 2 servers",
    ]


def test_rooms_are_counted_by_state(room):
    text = describe_rooms([room("queued"), room("complete"), room("queued")], NOW)
    assert text.splitlines()[-1] == "3 rooms: 2 queued, 1 complete"
    assert describe_rooms([], NOW) == "No room was partially joined here yet.\n"


def test_progress(room):
    assert progress_of(room("running")) == RoomProgress("!r:example.com", "walking", 1, 3)
    assert progress_of(room("complete")).finished
    assert progress_of(room("queued")).phase == "queued"
    waiting = progress_of(room("backoff", last_error="refused"))
    assert (waiting.phase, waiting.detail) == (Phase.BACKOFF, "refused")
