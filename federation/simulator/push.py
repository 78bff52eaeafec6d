"""How a resident sends events to the server under test: transactions over `/send`.

Source: server-server API, "Transactions".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiohttp

from federation.canonical_json import encode, parse_json
from federation.simulator.built_event import BuiltEvent
from federation.simulator.identity import ServerIdentity
from federation.x_matrix import authorization_header

_TIMEOUT_S = 60.0


async def push_events(
    sender: ServerIdentity,
    destination: str,
    events: Iterable[BuiltEvent],
    *,
    transaction_id: str,
    now_ms: int,
    edus: Sequence[Mapping[str, Any]] = (),
) -> tuple[int, dict[str, Any]]:
    """Send one transaction in the name of `sender`, certificates unchecked.

    Args:
        destination: the server's name with its port, on loopback.
        transaction_id: the same id again is a repetition.
        now_ms: `origin_server_ts` of the transaction.

    Returns:
        The HTTP status and the JSON body.
    """
    target = f"/_matrix/federation/v1/send/{transaction_id}"
    transaction = {
        "origin": sender.server_name,
        "origin_server_ts": now_ms,
        "pdus": [parse_json(event.json) for event in events],
        "edus": list(edus),
    }
    header = authorization_header(
        sender.server_name, sender.key, destination, "PUT", target, transaction
    )
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.put(
            f"https://{destination}{target}",
            data=encode(transaction),
            headers={"Authorization": header, "Content-Type": "application/json"},
            ssl=False,
        ) as response,
    ):
        return response.status, parse_json(await response.read())
