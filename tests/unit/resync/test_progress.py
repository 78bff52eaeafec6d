import asyncio
import io

from rich.console import Console

from resync.progress import Phase, ProgressBoard, RoomProgress
from resync.progress_display import BarDisplay, LineDisplay, describe, display_for

ROOM = "!room:example.com"


async def test_a_reader_gets_what_is_there_and_then_changes():
    board = ProgressBoard()
    board.update(ROOM, Phase.FETCH, 1, 10)
    async with board.subscribe() as changes:
        reader = aiter(changes)
        assert await anext(reader) == RoomProgress(ROOM, Phase.FETCH, 1, 10)
        board.update(ROOM, Phase.DONE)
        assert (await anext(reader)).finished


async def test_a_slow_reader_skips_to_the_newest_state():
    board = ProgressBoard()
    async with board.subscribe() as changes:
        for done in range(1000):
            board.update(ROOM, Phase.WALK, done, 1000)
        board.update("!other:example.com", Phase.JOIN)
        reader = aiter(changes)
        assert await anext(reader) == RoomProgress(ROOM, Phase.WALK, 999, 1000)
        assert (await anext(reader)).room_id == "!other:example.com"
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_readers_that_left_are_forgotten():
    board = ProgressBoard()
    async with board.subscribe() as changes:
        pass
    board.update(ROOM, Phase.WALK)
    assert not changes._wake.is_set()


async def test_the_board_can_be_read_and_cleared():
    board = ProgressBoard()
    board.update(ROOM, Phase.WALK, 1, 2)
    assert board.rooms[ROOM].done == 1
    board.remove(ROOM)
    assert not board.rooms


def lines(*steps: tuple[float, RoomProgress]) -> list[str]:
    stream = io.StringIO()
    now = 0.0
    with LineDisplay(stream, clock=lambda: now) as display:
        for now, progress in steps:  # noqa: B007 (the clock reads it)
            display.show(progress)
    return stream.getvalue().splitlines()


def test_lines_come_at_changes_of_phase_and_every_few_seconds():
    assert lines(
        (0.0, RoomProgress(ROOM, Phase.FETCH, 1, 4)),
        (0.1, RoomProgress(ROOM, Phase.FETCH, 2, 4)),
        (3.0, RoomProgress(ROOM, Phase.FETCH, 3, 4)),
        (3.1, RoomProgress(ROOM, Phase.FETCH, 4, 4)),
        (3.2, RoomProgress(ROOM, Phase.WALK)),
        (3.3, RoomProgress(ROOM, Phase.BACKOFF, detail="hs1: refused")),
        (3.4, RoomProgress(ROOM, Phase.BACKOFF, detail="hs1: refused")),
    ) == [
        "!room:example.com: fetching state 1/4 (25 %)",
        "!room:example.com: fetching state 3/4 (75 %)",
        "!room:example.com: fetching state 4/4 (100 %)",
        "!room:example.com: walking",
        "!room:example.com: waiting to try again - hs1: refused",
    ]


def test_text_from_others_cannot_drive_the_terminal():
    assert "\x1b" not in describe(RoomProgress("!\x1b[2J:a", "p", detail="\x1b]0;x\x07\nb"))


def test_a_pipe_gets_lines():
    assert isinstance(display_for(io.StringIO()), LineDisplay)


def test_a_terminal_gets_a_bar_that_is_redrawn():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    with BarDisplay(console) as display:
        display.show(RoomProgress(ROOM, Phase.FETCH, 1, 4))
        display.show(RoomProgress(ROOM, Phase.FETCH, 3, 4, "from [b]hs1[/b]"))
    text = stream.getvalue()
    assert ROOM in text
    assert "3/4" in text
    assert "from [b]hs1[/b]" in text
    assert "\x1b[" in text


def test_a_finished_room_fills_its_bar():
    stream = io.StringIO()
    with BarDisplay(Console(file=stream, force_terminal=True, width=120)) as display:
        display.show(RoomProgress(ROOM, Phase.WALK, 2, 4))
        display.show(RoomProgress(ROOM, Phase.WALK, 4, 4))
        display.show(RoomProgress(ROOM, Phase.COMPLETE))
        before = stream.getvalue()
        display.show(RoomProgress(ROOM, Phase.DONE))
    assert "✓" not in before
    last = stream.getvalue()[len(before) :]
    assert "✓" in last
    assert "fully stated" in last
    assert "4/4" not in last
