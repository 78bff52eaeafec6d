import asyncio
import os
import re
import sys

import psutil
import pytest

TRUE = "The state equals the room's true state, event id by event id."


async def run_demo(directory, **environment):
    """What `resync demo` writes; nothing of it may be left."""
    inherited = {name: os.environ[name] for name in os.environ if name != "JAVA_HOME"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "resync",
        "demo",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, "TMPDIR": str(directory), **environment},
    )
    out, err = await asyncio.wait_for(process.communicate(), 170)
    assert process.returncode == 0, out.decode() + err.decode()
    assert list(directory.iterdir()) == []
    assert [one for one in psutil.process_iter() if is_of_demo(one, directory)] == []
    return out.decode(), err.decode()


def is_of_demo(process, directory):
    try:
        return process.environ().get("TMPDIR") == str(directory)
    except psutil.Error:
        return False


@pytest.mark.xdist_group("spark")
async def test_the_demo_tells_the_whole_story_and_ends_by_itself(tmp_path):
    text, errors = await run_demo(tmp_path, JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert errors == ""
    assert "joined in" in text
    assert "state_ids (403)" in text
    assert re.search(r"fetching state \d+/\d+ \(\d+ %\)", text)
    first, large = text.split("== A large room")
    assert TRUE in first
    assert first.count("RDATA un_partial_stated_event demo ") == 6
    assert first.count("RDATA un_partial_stated_room demo ") == 1
    assert "Spark has started in the background, with the master local[2]." in large
    assert re.search(r"Hashes and signatures: 7,\d+ events on Spark\. Spark jobs: 1\.", large)
    assert re.search(r"State resolution: 8,000 changes of state on Spark\. Spark jobs: 1\.", large)
    assert "in process" not in large
    assert TRUE in large


async def test_without_java_the_demo_says_so_and_succeeds(tmp_path):
    text, errors = await run_demo(tmp_path, PATH="/nonexistent")
    assert errors.count("\n") == 1
    assert "No Java was found" in errors
    _, large = text.split("== A large room")
    assert "There is no Spark. No Java was found" in large
    assert "install Java 17 or newer and restart." in large
    assert re.search(r"Hashes and signatures: 7,\d+ events in process\.", large)
    assert "State resolution: 8,000 changes of state in process." in large
    assert "on Spark." not in large
    assert TRUE in large
