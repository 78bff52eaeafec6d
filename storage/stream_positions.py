"""What the database keeps of streams besides their rows: ids, positions, and who writes.

* Ids come from the stream's sequence on PostgreSQL. SQLite has no sequences: there a row of
  `stream_positions` under the sequence's name counts, so that two processes which have the file
  open never hold the same id.
* `stream_positions` has how far each writer is complete, under the names Synapse uses.
* `worker_locks` has one row per writer, renewed while it lives. It tells a writer that is slow
  from one that is dead: nothing more will come from a dead one, so it holds nobody up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Insert, delete, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from storage.schema import stream_positions, worker_locks
from storage.stream_rows import StreamTable
from storage.stream_tracker import FIRST_POSITION

WRITER_LOCK = "resync_stream_writer"
WRITER_TTL_MS = 60_000
"""A writer that has not renewed its row for so long is dead."""

_ANNOUNCED = ":announced"


def _upsert(connection: Connection) -> sqlite.Insert:
    """An INSERT into stream_positions; both dialects spell ON CONFLICT the same way."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(stream_positions)  # type: ignore[return-value]
    return sqlite.insert(stream_positions)


def prepare_ids(connection: Connection, stream: StreamTable) -> int:
    """Make sure that the next id is larger than every id in use, and at least 2.

    Returns the largest id handed out so far, which is where a writer that has just started
    stands. The sequence can be behind its table after a restore or a copy of the data. It is
    moved by drawing from it, which is safe beside other writers; setting it is not.
    """
    last = allocated(connection, stream)
    if connection.dialect.name == "postgresql":
        missing = last - _last_value(connection, stream)
        if missing > 0:
            next_ids(connection, stream, missing)
            return allocated(connection, stream)
    return last


def next_ids(connection: Connection, stream: StreamTable, count: int) -> list[int]:
    """Draw `count` ids, ascending, which nobody else will get."""
    if connection.dialect.name == "postgresql":
        drawn = connection.execute(
            text("SELECT nextval(CAST(:sequence AS regclass)) FROM generate_series(1, :count)"),
            {"sequence": stream.sequence, "count": count},
        )
        return sorted(drawn.scalars())
    table = stream.table
    largest = func.coalesce(select(func.max(table.c.stream_id)).scalar_subquery(), FIRST_POSITION)
    statement = sqlite.insert(stream_positions).values(
        stream_name=stream.sequence, instance_name="", stream_id=largest + count
    )
    last = connection.execute(
        statement.on_conflict_do_update(
            index_elements=["stream_name", "instance_name"],
            set_={"stream_id": func.max(stream_positions.c.stream_id, largest) + count},
        ).returning(stream_positions.c.stream_id)
    ).scalar_one()
    return list(range(last - count + 1, last + 1))


def allocated(connection: Connection, stream: StreamTable) -> int:
    """The largest id handed out to anybody; 1 if there is none."""
    in_table = connection.execute(select(func.max(stream.table.c.stream_id))).scalar()
    return max(FIRST_POSITION, in_table or 0, _last_value(connection, stream))


def _last_value(connection: Connection, stream: StreamTable) -> int:
    if connection.dialect.name == "postgresql":
        return int(
            connection.execute(
                text(
                    "SELECT CASE WHEN is_called THEN last_value ELSE 0 END"
                    f' FROM "{stream.sequence}"'
                )
            ).scalar_one()
        )
    counted = connection.execute(
        select(stream_positions.c.stream_id).where(
            stream_positions.c.stream_name == stream.sequence,
            stream_positions.c.instance_name == "",
        )
    ).scalar()
    return counted or 0


def load_positions(connection: Connection, stream: StreamTable) -> dict[str, int]:
    """How far each writer that has said so is complete."""
    return _load(connection, stream.position_name)


def store_positions(
    connection: Connection, stream: StreamTable, positions: Mapping[str, int]
) -> None:
    """Say how far writers are complete. A position never goes back."""
    _store(connection, stream.position_name, positions)


def load_announced(connection: Connection, stream: StreamTable, writer: str) -> int | None:
    """Up to where `writer` has told its readers of its rows; None if it never did."""
    return _load(connection, stream.position_name + _ANNOUNCED).get(writer)


def store_announced(
    connection: Connection, stream: StreamTable, writer: str, position: int
) -> None:
    """Say up to where `writer` has told its readers. It never goes back."""
    _store(connection, stream.position_name + _ANNOUNCED, {writer: position})


def _load(connection: Connection, stream_name: str) -> dict[str, int]:
    table = stream_positions
    found = connection.execute(
        select(table.c.instance_name, table.c.stream_id).where(table.c.stream_name == stream_name)
    )
    return {row.instance_name: row.stream_id for row in found}


def _store(connection: Connection, stream_name: str, positions: Mapping[str, int]) -> None:
    if not positions:
        return
    statement = _upsert(connection)
    statement = statement.on_conflict_do_update(
        index_elements=["stream_name", "instance_name"],
        set_={"stream_id": statement.excluded.stream_id},
        where=stream_positions.c.stream_id < statement.excluded.stream_id,
    )
    connection.execute(
        statement,
        # A fixed order, so that two processes never wait for each other's rows.
        [
            {"stream_name": stream_name, "instance_name": writer, "stream_id": positions[writer]}
            for writer in sorted(positions)
        ],
    )


# Who writes


def claim_writer(connection: Connection, instance_name: str, token: str, now_ms: int) -> None:
    """Say that this process, known by `token`, writes as `instance_name` from now on."""
    connection.execute(
        delete(worker_locks).where(
            worker_locks.c.lock_name == WRITER_LOCK, worker_locks.c.lock_key == instance_name
        )
    )
    connection.execute(
        Insert(worker_locks).values(
            lock_name=WRITER_LOCK,
            lock_key=instance_name,
            instance_name=instance_name,
            token=token,
            last_renewed_ts=now_ms,
        )
    )


def renew_writer(connection: Connection, instance_name: str, token: str, now_ms: int) -> bool:
    """Say that this writer is alive. False: another process has claimed its name since."""
    renewed = connection.execute(
        update(worker_locks)
        .where(
            worker_locks.c.lock_name == WRITER_LOCK,
            worker_locks.c.lock_key == instance_name,
            worker_locks.c.token == token,
        )
        .values(last_renewed_ts=now_ms)
    )
    return renewed.rowcount == 1


def retire_writer(connection: Connection, instance_name: str, token: str) -> None:
    """Say that this writer has ended in good order: its stored positions are final."""
    connection.execute(
        delete(worker_locks).where(
            worker_locks.c.lock_name == WRITER_LOCK,
            worker_locks.c.lock_key == instance_name,
            worker_locks.c.token == token,
        )
    )


def dead_writers(connection: Connection, now_ms: int) -> set[str]:
    """The writers that ended without a word and have not come back."""
    found = connection.execute(
        select(worker_locks.c.lock_key).where(
            worker_locks.c.lock_name == WRITER_LOCK,
            worker_locks.c.last_renewed_ts < now_ms - WRITER_TTL_MS,
        )
    )
    return set(found.scalars())


def remove_dead_writers(connection: Connection, writers: Collection[str], now_ms: int) -> None:
    """Forget `writers`, which are dead and whose positions were stored; not one that came back."""
    connection.execute(
        delete(worker_locks).where(
            worker_locks.c.lock_name == WRITER_LOCK,
            worker_locks.c.lock_key.in_(writers),
            worker_locks.c.last_renewed_ts < now_ms - WRITER_TTL_MS,
        )
    )


class Survey(NamedTuple):
    """Where a stream stands: ids handed out, and how far each other writer is complete."""

    allocated: int
    positions: dict[str, int]
    dead: frozenset[str]


def survey(
    connection: Connection, streams: Sequence[StreamTable], local_writer: str, now_ms: int
) -> list[Survey]:
    """What the database says of each of `streams`, writers other than `local_writer` only.

    A living writer, Synapse included, is complete up to where it says. A dead one is complete up
    to the last id handed out: what it had not committed by now never will be.
    """
    dead = dead_writers(connection, now_ms) - {local_writer}
    result = []
    for stream in streams:
        last = allocated(connection, stream)
        positions = load_positions(connection, stream) | dict.fromkeys(dead, last)
        positions.pop(local_writer, None)
        result.append(Survey(last, positions, frozenset(dead)))
    return result
