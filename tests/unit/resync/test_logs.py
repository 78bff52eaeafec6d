import io
import json
import logging

import pytest
import structlog

from resync.logs import configure_logging, room_logging


@pytest.fixture(autouse=True)
def _restore_logging():
    root = logging.getLogger()
    before = list(root.handlers), root.level, structlog.get_config()
    yield
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)
    structlog.configure(**before[2])


def logged(log_format, level="info"):
    stream = io.StringIO()
    configure_logging(log_format, level, stream)
    return stream


def test_json_has_one_object_a_line_with_room_and_job():
    stream = logged("json")
    log = structlog.get_logger("resync.test")
    with room_logging("!r:a", 7):
        log.info("walked", events=3)
    log.warning("after")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["events"], first["room_id"], first["job_id"]) == (
        "walked",
        3,
        "!r:a",
        7,
    )
    assert first["level"] == "info"
    assert first["logger"] == "resync.test"
    assert "room_id" not in second


def test_console_has_keys_and_values():
    stream = logged("console")
    with room_logging("!r:a"):
        structlog.get_logger("x").info("walked far", events=3, reason="a b", empty="")
    line = stream.getvalue().rstrip("\n")
    assert line.endswith(' info    walked far events=3 reason="a b" empty="" room_id=!r:a logger=x')


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_text_from_others_cannot_forge_a_line(log_format):
    stream = logged(log_format)
    evil = 'a"\n2024 error   you are hacked \x1b[31m'
    structlog.get_logger("x").info(evil, reason=evil)
    logging.getLogger("x").warning("said %s", evil)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "\x1b" not in stream.getvalue()


def test_records_of_the_standard_library_take_the_same_way():
    stream = logged("json")
    with room_logging("!r:a"):
        logging.getLogger("lib").warning("n=%d", 3, extra={"destination": "hs1"})
    record = json.loads(stream.getvalue())
    assert (record["event"], record["room_id"], record["destination"]) == ("n=3", "!r:a", "hs1")


def test_exceptions_keep_their_traceback():
    for log_format in ("console", "json"):
        stream = logged(log_format)
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            structlog.get_logger("x").exception("failed")
        assert "Traceback" in stream.getvalue()
        assert "RuntimeError: boom" in stream.getvalue()


def test_levels_and_quiet_libraries():
    stream = logged("console", "debug")
    logging.getLogger("aiohttp.access").info("GET /")
    structlog.get_logger("x").debug("seen")
    assert "GET /" not in stream.getvalue()
    assert "seen" in stream.getvalue()
    stream = logged("console", "warning")
    structlog.get_logger("x").info("not seen")
    assert stream.getvalue() == ""
