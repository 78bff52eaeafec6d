"""`resync demo`: the whole story on a simulated federation, over real sockets on loopback.

Nothing is set up beforehand and nothing is left behind: the database, the keys and the
certificates are in a temporary directory, and every port is a free one.
"""

from resync.demo.story import run_demo

__all__ = ["run_demo"]
