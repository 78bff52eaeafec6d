"""`resync migrate`: the database at the newest schema."""

from __future__ import annotations

from typing import TextIO

from resync.config import Config
from storage import migrate as schema


def migrate(config: Config, out: TextIO) -> int:
    """Migrate, and say from where to where."""
    before = schema.current(config.database)
    schema.upgrade(config.database)
    after = schema.newest()
    if before == after:
        out.write(f"The database is at the newest schema already ({after}).\n")
    else:
        out.write(f"The database is now at schema {after} (before: {before or 'empty'}).\n")
    return 0
