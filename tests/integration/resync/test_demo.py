import asyncio
import os
import re
import sys


async def test_the_demo_tells_the_whole_story_and_ends_by_itself(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "resync",
        "demo",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    out, err = await asyncio.wait_for(process.communicate(), 110)
    text = out.decode()
    assert process.returncode == 0, text + err.decode()
    assert err == b""
    assert "joined in" in text
    assert "state_ids (403)" in text
    assert re.search(r"fetching state \d+/\d+ \(\d+ %\)", text)
    assert "The state equals the room's true state, event id by event id." in text
    assert text.count("RDATA un_partial_stated_event demo ") == 6
    assert text.count("RDATA un_partial_stated_room demo ") == 1
    assert list(tmp_path.iterdir()) == []
