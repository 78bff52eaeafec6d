"""Requests to Synapse's federation API, signed by the test in the name of a homeserver."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from signedjson.sign import sign_json

from tests.interop.loopback import HttpsConnection
from tests.interop.synapse_server import SynapseServer


class FederationPeer:
    """Signs requests as another homeserver whose key Synapse can fetch or has already.

    Args:
        server_name: the name it speaks for.
        signing_key: its key.
        synapse: the server to talk to.
    """

    def __init__(self, server_name: str, signing_key: Any, synapse: SynapseServer) -> None:
        self._server_name = server_name
        self._signing_key = signing_key
        self._destination = synapse.server_name
        self._connection = HttpsConnection("localhost", synapse.port)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """A signed request. `path` with its query, quoted.

        Raises:
            ApiError: Synapse answered with an error.
        """
        signed: dict[str, Any] = {
            "method": method,
            "uri": path,
            "origin": self._server_name,
            "destination": self._destination,
        }
        if body is not None:
            signed["content"] = body
        sign_json(signed, self._server_name, self._signing_key)
        ((key_id, signature),) = signed["signatures"][self._server_name].items()
        authorization = (
            f'X-Matrix origin="{self._server_name}",destination="{self._destination}",'
            f'key="{key_id}",sig="{signature}"'
        )
        headers = {"Authorization": authorization, "Content-Type": "application/json"}
        return self._connection.request(method, path, body, headers)

    def state_ids(self, room_id: str, event_id: str) -> list[str]:
        """The ids of the state before an event."""
        query = urlencode({"event_id": event_id})
        path = f"/_matrix/federation/v1/state_ids/{quote(room_id)}?{query}"
        return list(self.request("GET", path)["pdu_ids"])

    def close(self) -> None:
        self._connection.close()
