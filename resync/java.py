"""Finds the Java that Spark needs, and says in one sentence what is missing if there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resync.errors import ResyncError

MINIMUM_JAVA = 17
_CONSEQUENCE = (
    "Large rooms are resynced in this process instead of on Spark, more slowly; "
    f"to use Spark, install Java {MINIMUM_JAVA} or newer and restart"
)
_TIMEOUT_SECONDS = 20.0
# "17.0.9", "21", and the old form of Java 8, "1.8.0_392".
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissing(ResyncError):
    """There is no Java that Spark can run on."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. {_CONSEQUENCE}")


@dataclass(frozen=True)
class Java:
    """A Java that works: where it is, and its feature version (17, 21, …)."""

    path: Path
    version: int


def find_java(environment: Mapping[str, str]) -> Java:
    """The Java that JAVA_HOME names, else the first on PATH, asked for its version.

    Blocks for as long as a JVM takes to start. Raises `JavaMissing`.
    """
    path = _locate(environment)
    try:
        answer = subprocess.run(
            [path, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise JavaMissing(f"{path} cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise JavaMissing(f"{path} did not tell its version") from error
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        raise JavaMissing(f"{path} does not work as a Java")
    version = int(found[1])
    if version < MINIMUM_JAVA:
        raise JavaMissing(f"{path} is Java {version}, which is too old")
    return Java(path, version)


def _locate(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise JavaMissing(f"JAVA_HOME is {home}, where there is no bin/java")
        return path
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is None:
        raise JavaMissing("No Java was found: JAVA_HOME is not set and PATH has no java")
    return Path(on_path)
