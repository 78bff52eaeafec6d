"""Spark masters other than this process's own threads, all on loopback.

These take minutes and memory, so they are no part of `make test`: see `make test-slow`.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from tests.integration.resync.spark.conftest import open_session

START_SECONDS = 120
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@pytest.fixture(scope="module", params=["local-cluster[2,1,1024]", "standalone"])
def spark(request, tmp_path_factory):
    """A warm session whose executors are processes of their own."""
    with contextlib.ExitStack() as stack:
        master, settings = request.param, dict(ON_LOOPBACK)
        if master == "standalone":
            master = stack.enter_context(standalone(tmp_path_factory.mktemp("standalone")))
            settings |= {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
        session = open_session(master, **settings)
        stack.callback(session.close)
        yield session


@contextlib.contextmanager
def standalone(directory):
    """A standalone master with two workers of one core each; gives its URL."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with contextlib.ExitStack() as stack:

        def start(name, *arguments):
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [SPARK_CLASS, *arguments], env=environment, stdout=log, stderr=log
            )
            stack.callback(stop, process)

        start(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        )
        wait_for(port)
        for number in range(2):
            start(
                f"worker{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(directory / f"work{number}"), master),
            )
        yield master


def stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
