"""A whole federation on loopback: several residents with shared rooms.

async with SimulatedFederation(servers=2) as simulated:
    room = simulated.create_room(room_version="10", members=30)
    simulated.residents[0].faults.refuse("state_ids", times=1)
    ...
    assert ours == room.state_before(join_event_id)
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from federation.simulator.built_event import BuiltEvent
from federation.simulator.certificates import CertificateFiles, write_certificate
from federation.simulator.identity import Identities
from federation.simulator.population import Mix, populate
from federation.simulator.resident import Resident, bind
from federation.simulator.room import RoomBuilder
from federation.simulator.world import World

LOOPBACK = "127.0.0.1"


class SimulatedFederation:
    """Homeservers on ports of 127.0.0.1, and servers that are known by name alone.

    Attributes:
        residents: the servers that listen, in the order of their ports.
        unreachable: names of the servers that do not listen; the residents, as notaries, give
            out their keys.
        world: rooms and identities, shared by all.
        certificate: what the residents show; self-signed, so clients must trust or ignore it.
        propagates_joins: whether a join through one resident is known to the others at once.
    """

    def __init__(
        self,
        *,
        servers: int = 1,
        unreachable: int = 0,
        seed: int = 0,
        host: str = LOOPBACK,
        ports: Sequence[int] = (),
        propagates_joins: bool = True,
    ) -> None:
        """Prepare a federation; `start` or `async with` opens its sockets.

        Args:
            servers: how many servers listen.
            unreachable: how many more have members and keys but cannot be reached.
            seed: keys and rooms follow from it (and from the ports, which are in the names).
            host: "127.0.0.1" or "localhost", as the server names have it.
            ports: the ports to use; free ones where there are fewer than servers.
        """
        self._host = host
        self._ports = [*ports, *[0] * servers][:servers]
        self._seed = seed
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.world = World(Identities(seed))
        self.residents: list[Resident] = []
        self.unreachable = [f"server{number}.invalid" for number in range(unreachable)]
        self.propagates_joins = propagates_joins
        self.certificate: CertificateFiles

    async def start(self) -> None:
        """Make a certificate and listen."""
        self._directory = tempfile.TemporaryDirectory(prefix="simulator-")
        self.certificate = write_certificate(Path(self._directory.name))
        context = self.certificate.server_context()
        for port in self._ports:
            listening = bind(LOOPBACK, port)
            server_name = f"{self._host}:{listening.getsockname()[1]}"
            resident = Resident(self.world, self.world.identities.of(server_name), context)
            resident.on_join = self._joined_through(resident)
            self.residents.append(resident)
            await resident.start(listening)
        for server_name in self.unreachable:
            self.world.identities.of(server_name)

    async def stop(self) -> None:
        """Close every socket and remove the certificate."""
        for resident in self.residents:
            await resident.stop()
        if self._directory is not None:
            self._directory.cleanup()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def server_names(self) -> list[str]:
        """The names of the servers that listen."""
        return [resident.server_name for resident in self.residents]

    def resident(self, server_name: str) -> Resident:
        """The resident called `server_name`.

        Raises:
            KeyError: no resident is called so.
        """
        for resident in self.residents:
            if resident.server_name == server_name:
                return resident
        raise KeyError(server_name)

    def create_room(
        self,
        room_version: str = "10",
        *,
        members: int = 0,
        mix: Mix | None = None,
        creator: str | None = None,
        **how: Any,
    ) -> RoomBuilder:
        """A new room with `members` member entries beside its creator's, over all servers.

        Takes about 70 µs per event; a large room may be made in a thread.

        Args:
            mix: what has become of the members; see `Mix`.
            creator: user id; `@creator` of the first resident if left out.
            how: as for `RoomBuilder`.
        """
        number = len(self.world.rooms)
        seed = how.pop("seed", self._seed * 1000 + number)
        creator = creator or f"@creator:{self.residents[0].server_name}"
        room = RoomBuilder(room_version, creator, self.world.identities, seed=seed, **how)
        populate(room, members, self.server_names + self.unreachable, seed=seed, mix=mix)
        self.world.rooms[room.room_id] = room
        return room

    def trust(self, server_name: str, key_id: str, verify_key: bytes) -> None:
        """Accept requests and events signed by a server that is not simulated.

        Without this its key is asked of the server itself, on loopback only.
        """
        self.world.verify_keys[server_name, key_id] = verify_key

    def withhold(self, event: BuiltEvent | str) -> None:
        """Let no resident know an event: nobody can deliver it."""
        event_id = event if isinstance(event, str) else event.event_id
        for resident in self.residents:
            resident.unseen.add(event_id)

    def propagate(self) -> None:
        """Let every resident know every event."""
        for resident in self.residents:
            resident.unseen.clear()

    def _joined_through(self, entry: Resident) -> Any:
        def joined(room: RoomBuilder, join: BuiltEvent) -> None:
            if not self.propagates_joins:
                for resident in self.residents:
                    if resident is not entry:
                        resident.unseen.add(join.event_id)

        return joined
