"""The JVM behind a Spark session: launching it, telling whether it lives, ending it.

PySpark keeps its one JVM and its one context in class attributes and expects both to last as long
as the process. A worker outlives its JVM, so they are reset here, and nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from resync.spark.errors import SparkUnavailable

_STOP_SECONDS = 10.0


class Jvm:
    """A JVM with a Spark session in it."""

    def __init__(
        self, settings: Mapping[str, str], log_path: Path, *, go_on: Callable[[], None]
    ) -> None:
        """Starts both; this takes seconds.

        Args:
            settings: Spark's settings.
            log_path: where the JVM writes what it would print.
            go_on: called half-way; raises if there is no need of a session any more.

        Raises:
            SparkUnavailable: it does not start.
        """
        if SparkContext._active_spark_context is not None:
            raise SparkUnavailable("this process has a Spark session already")
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings.items()))
        self._gateway: Any = None
        logging.getLogger().addFilter(_is_not_of_py4j)
        try:
            with log_path.open("ab") as log:
                # A session of its own: a Ctrl-C in the terminal is for the worker.
                self._gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": log, "stderr": log, "start_new_session": True}
                )
            self.process: subprocess.Popen[bytes] = self._gateway.proc
            go_on()
            context = SparkContext(conf=conf, gateway=self._gateway)
            # Reading PYSPARK_PYTHON from the environment is PySpark's only other way.
            context.pythonExec = settings["spark.pyspark.python"]
            # It prints a traceback when the JVM dies, which is noticed elsewhere.
            server: Any = context._accumulatorServer
            server.handle_error = lambda request, address: None
            self.context = context
            self.cores = max(1, context.defaultParallelism)
            self.session = SparkSession(context)
        except Exception as error:
            self.close()
            raise SparkUnavailable(
                f"Spark did not start: {_last_line(log_path) or one_line(error)}"
            ) from error

    @property
    def is_alive(self) -> bool:
        """Whether the JVM runs and its context has not been stopped."""
        if self.process.poll() is not None:
            return False
        try:
            return not self.context._jsc.sc().isStopped()
        except Exception:
            # Whatever py4j makes of a JVM that does not answer.
            return False

    def cancel(self, group: str) -> None:
        """Stops the jobs of a group, and those that are still to come. Nothing if the JVM dies."""
        with contextlib.suppress(Exception):
            self.context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def close(self) -> None:
        """Ends the session and the JVM. Dead ones are cleared away."""
        process: subprocess.Popen[bytes] | None = getattr(self._gateway, "proc", None)
        context = SparkContext._active_spark_context
        if process is not None and process.poll() is None and context is not None:
            # A JVM that hangs must not hold up the shutdown.
            stopping = threading.Thread(target=_stop, args=(context,), daemon=True)
            stopping.start()
            stopping.join(_STOP_SECONDS)
        if process is not None:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with contextlib.suppress(Exception):
            self._gateway.shutdown()
        _forget()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j reports on the root logger, with a traceback, what its caller gets as an exception."""
    return record.module != "java_gateway"


def _stop(context: SparkContext) -> None:
    with contextlib.suppress(Exception):
        context.stop()


def _forget() -> None:
    """Makes PySpark ready for another JVM."""
    context: Any = SparkContext._active_spark_context
    accumulators = getattr(context, "_accumulatorServer", None)
    if accumulators is not None:
        with contextlib.suppress(Exception):
            accumulators.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def one_line(error: BaseException) -> str:
    """What an exception says, short enough for a log line."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__


def _last_line(log_path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line.strip() for line in lines if "Exception" in line or "rror" in line]
        return told[0][:300] if told else ""
    return ""
