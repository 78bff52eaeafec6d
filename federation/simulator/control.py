"""Control of a simulation from another process: plain HTTP with JSON, on loopback.

| request | body or query | does |
|---|---|---|
| `GET /_simulator/rooms` | | lists rooms, residents and ports |
| `POST /_simulator/rooms` | `room_version`, `members`, `name`, … | makes a room |
| `GET /_simulator/state` | `room_id`, `event_id`, `when` = `before` or `after` | the true state |
| `GET /_simulator/events` | `room_id` | ids, oldest first, with depth and rejection |
| `POST /_simulator/send` | `room_id`, `type`, `content`, `state_key`, … | sends an event |
| `POST /_simulator/faults` | `server`, `endpoint`, `kind`, `arguments`, … | plans a fault |
| `DELETE /_simulator/faults` | `server` | forgets all faults there, or everywhere |
| `POST /_simulator/disappear` | `server` | stops listening |
| `POST /_simulator/come_back` | `server` | listens again |
| `POST /_simulator/propagate` | | tells every resident of every event |
| `POST /_simulator/trust` | `server_name`, `key_id`, `verify_key` | accepts a server's key |
| `GET /_simulator/requests` | `server` | requests by endpoint |

Where `server` is left out, all residents are meant. `event_id` left out of `state`: the current
state. Errors are Matrix-shaped.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from federation.canonical_json import encode
from federation.errors import FederationError
from federation.signing import decode_base64, encode_base64
from federation.simulator import faults as fault_kinds
from federation.simulator.answers import RefusedError
from federation.simulator.authentication import read_json
from federation.simulator.faults import Fault, Lie
from federation.simulator.federation import SimulatedFederation
from federation.simulator.lies import LIES
from federation.simulator.population import Mix
from federation.simulator.resident import ENDPOINTS, Resident
from federation.simulator.room import RoomBuilder

_KINDS: Mapping[str, type[Fault]] = {
    "refuse": fault_kinds.Refuse,
    "disconnect": fault_kinds.Disconnect,
    "stall": fault_kinds.Stall,
    "stall_midway": fault_kinds.StallMidway,
    "truncate": fault_kinds.Truncate,
    "cut_short": fault_kinds.CutShort,
    "garbage": fault_kinds.Garbage,
    "oversize": fault_kinds.Oversize,
    "trickle": fault_kinds.Trickle,
    "ignore_omit_members": fault_kinds.IgnoreOmitMembers,
}
"""The kinds of fault; `arguments` are the fields of the class. A `lie` takes those of its `lie`."""

_SEND_ARGUMENTS = frozenset(
    {
        "sender",
        "state_key",
        "prev_events",
        "auth_events",
        "rejected",
        "origin_server_ts",
        "fields",
    }
)
_ROOM_ARGUMENTS = frozenset(
    {"room_version", "members", "name", "topic", "join_rule", "power_levels", "creator", "seed"}
)


class Control:
    """The control endpoint of one simulated federation."""

    def __init__(self, simulated: SimulatedFederation) -> None:
        self._simulated = simulated
        self._runner: web.AppRunner | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket of loopback."""
        app = web.Application()
        for method, path, answer in (
            ("GET", "rooms", self._list_rooms),
            ("POST", "rooms", self._create_room),
            ("GET", "state", self._state),
            ("GET", "events", self._events),
            ("POST", "send", self._send),
            ("POST", "faults", self._add_fault),
            ("DELETE", "faults", self._clear_faults),
            ("POST", "disappear", self._disappear),
            ("POST", "come_back", self._come_back),
            ("POST", "propagate", self._propagate),
            ("POST", "trust", self._trust),
            ("GET", "requests", self._requests),
        ):
            app.router.add_route(method, f"/_simulator/{path}", _handler(answer))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """Close the socket."""
        if self._runner is not None:
            await self._runner.cleanup()

    def describe(self) -> dict[str, Any]:
        """What a process that has started a simulation needs to know about it."""
        simulated = self._simulated
        return {
            "servers": simulated.server_names,
            "ports": [int(name.rpartition(":")[2]) for name in simulated.server_names],
            "unreachable": simulated.unreachable,
            "ca_path": str(simulated.certificate.certificate),
            "verify_keys": {
                resident.server_name: {
                    resident.identity.key_id: encode_base64(resident.identity.verify_key)
                }
                for resident in simulated.residents
            },
            "rooms": [
                {
                    "room_id": room.room_id,
                    "room_version": room.version.identifier,
                    "events": len(room.events),
                    "forward_extremities": list(room.forward_extremities),
                }
                for room in simulated.world.rooms.values()
            ],
        }

    async def _list_rooms(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return self.describe()

    async def _create_room(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        how = {name: asked[name] for name in _ROOM_ARGUMENTS & asked.keys()}
        mix = Mix(**asked["mix"]) if "mix" in asked else None
        return {"room_id": self._simulated.create_room(mix=mix, **how).room_id}

    async def _state(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        room = self._room(asked)
        if "event_id" not in asked:
            state = room.current_state()
        elif asked.get("when", "before") == "after":
            state = room.state_after(asked["event_id"])
        else:
            state = room.state_before(asked["event_id"])
        return {"state": [[*key, event_id] for key, event_id in sorted(state.items())]}

    async def _events(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "events": [
                {
                    "event_id": event.event_id,
                    "type": event.type,
                    "state_key": event.state_key,
                    "sender": event.sender,
                    "depth": event.depth,
                    "rejected": event.rejected,
                    "prev_events": event.prev_event_ids,
                }
                for event in self._room(asked).events.values()
            ]
        }

    async def _send(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        how = {name: asked[name] for name in _SEND_ARGUMENTS & asked.keys()}
        if "state_before" in asked:
            how["state_before"] = {
                (event_type, state_key): event_id
                for event_type, state_key, event_id in asked["state_before"]
            }
        event = self._room(asked).append(asked["type"], asked["content"], **how)
        return {"event_id": event.event_id}

    async def _add_fault(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["endpoint"] not in (*ENDPOINTS, fault_kinds.ANY):
            raise ValueError(f"endpoint is one of {', '.join(ENDPOINTS)} or {fault_kinds.ANY}")
        arguments = dict(asked.get("arguments", {}))
        fault: Fault
        if asked["kind"] == "lie":
            fault = Lie(LIES[arguments.pop("lie")](**arguments))
        else:
            fault = _KINDS[asked["kind"]](**arguments)
        how = {name: asked[name] for name in ("times", "skip", "containing") if name in asked}
        for resident in self._residents(asked):
            resident.faults.add(asked["endpoint"], fault, **how)
        return {}

    async def _clear_faults(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        for resident in self._residents(asked):
            resident.faults.clear()
        return {}

    async def _disappear(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        for resident in self._residents(asked):
            await resident.disappear()
        return {}

    async def _come_back(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        for resident in self._residents(asked):
            await resident.come_back()
        return {}

    async def _propagate(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._simulated.propagate()
        return {}

    async def _trust(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        key = decode_base64(asked["verify_key"])
        self._simulated.trust(asked["server_name"], asked["key_id"], key)
        return {}

    async def _requests(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "requests": {
                resident.server_name: Counter(request.endpoint for request in resident.requests)
                for resident in self._residents(asked)
            }
        }

    def _room(self, asked: Mapping[str, Any]) -> RoomBuilder:
        return self._simulated.world.rooms[asked["room_id"]]

    def _residents(self, asked: Mapping[str, Any]) -> list[Resident]:
        if "server" in asked:
            return [self._simulated.resident(asked["server"])]
        return self._simulated.residents


def _handler(
    answer: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            asked = {**request.query, **(await read_json(request) or {})}
            body, status = await answer(asked), 200
        except KeyError as error:
            body, status = _error("M_NOT_FOUND", f"missing or unknown: {error.args[0]}"), 404
        except RefusedError as error:
            body, status = _error(error.errcode, error.error), error.status
        except (FederationError, TypeError, ValueError, AttributeError) as error:
            body, status = _error("M_INVALID_PARAM", str(error)), 400
        return web.Response(body=encode(body), status=status, content_type="application/json")

    return handle


def _error(errcode: str, error: str) -> dict[str, Any]:
    return {"errcode": errcode, "error": error}
