"""What a checking process runs before its first batch. It imports next to nothing: each of these
processes would import it again."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading

NICENESS = 5
"""By how much the checking processes give way to the event loop, which has others waiting."""


def prepare() -> None:
    """Makes the process ignore Ctrl-C, give way, and end when the worker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
