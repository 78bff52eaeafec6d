"""The public keys of other servers: kept, asked of notaries, asked of the servers themselves."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from federation.checks import VerifyKey
from federation.errors import FederationError, is_outage
from federation.key_responses import KeyResponse, PublishedKey
from federation.key_sources import KeyPair, Notary, ServerKeys, TrustedKeyServer
from federation.transport import Transport

__all__ = [
    "FetchedKeys",
    "KeyPair",
    "KeyRing",
    "KeyRingLimits",
    "KeyStore",
    "StoredKey",
    "TrustedKeyServer",
]

_NO_KEYS: Final[Mapping[KeyPair, VerifyKey]] = MappingProxyType({})
_SERVERS_PER_WRITE: Final = 500

Key = TypeVar("Key", bound=Hashable)


class StoredKey(NamedTuple):
    """A key as it is kept.

    Attributes:
        server_name, key_id: which key.
        verify_key: 32 bytes, Ed25519.
        from_server: who told us: the server itself or a notary.
        ts_added_ms: when, ms since the epoch.
        ts_valid_until_ms: the last moment of which its signatures count.
        key_json: the response it came in, canonical JSON.
    """

    server_name: str
    key_id: str
    verify_key: bytes
    from_server: str
    ts_added_ms: int
    ts_valid_until_ms: int
    key_json: bytes


class KeyStore(Protocol):
    """Where keys are kept."""

    async def load_keys(self, pairs: Collection[KeyPair]) -> dict[KeyPair, StoredKey]:
        """The keys that are known of `pairs`."""
        ...

    async def store_keys(self, keys: Sequence[StoredKey]) -> None:
        """Keeps `keys`, in place of what was known of them."""
        ...


@dataclass(frozen=True, slots=True)
class KeyRingLimits:
    """Bounds on the search for keys.

    Attributes:
        servers_at_once: servers that are asked for their own keys at the same time.
        server_timeout: for one server, discovery and retries included, in seconds.
        search_again_after: what was searched in vain is not searched again for so long, in
            seconds; nor is a server or notary asked again that failed.
        remembered: searches and failures that are remembered.
    """

    servers_at_once: int = 50
    server_timeout: float = 20.0
    search_again_after: float = 600.0
    remembered: int = 50_000


class FetchedKeys(dict[KeyPair, VerifyKey]):
    """The keys that were found.

    Attributes:
        failures: for each server of which a key is missing: why.
        missing_for_now: servers of which a key is missing, or is not valid for long enough, that
            somebody may give who could not be reached: a notary or, where there is no notary, the
            server itself. A server that is gone while all notaries answer is not among them.
    """

    def __init__(
        self,
        keys: Mapping[KeyPair, VerifyKey],
        failures: Mapping[str, str],
        missing_for_now: Collection[str] = (),
    ) -> None:
        super().__init__(keys)
        self.failures = dict(failures)
        self.missing_for_now = frozenset(missing_for_now)


class KeyRing:
    """Finds the keys that signatures are checked with.

    What the store has and is valid for long enough is used. The rest is asked of the notaries,
    many servers in one request, and what they do not have of the servers themselves, many at
    the same time.

    Args:
        store: keeps what was found.
        trusted_key_servers: notaries, in the order in which to ask; a plain string is the name
            of one without pinned keys.
        own_keys: our own keys, which nobody needs to be asked for.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        transport: Transport,
        store: KeyStore,
        trusted_key_servers: Iterable[TrustedKeyServer | str] = (),
        *,
        own_keys: Mapping[KeyPair, VerifyKey] = _NO_KEYS,
        limits: KeyRingLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        limits = limits or KeyRingLimits()
        self._store = store
        self._own_keys = dict(own_keys)
        self._search_again_after = limits.search_again_after
        self._clock = clock
        self._servers = ServerKeys(
            transport, at_once=limits.servers_at_once, timeout=limits.server_timeout, clock=clock
        )
        self._notaries = [
            Notary(
                TrustedKeyServer(notary) if isinstance(notary, str) else notary,
                transport,
                self._servers,
                clock=clock,
            )
            for notary in trusted_key_servers
        ]
        self._searched = _Memory[KeyPair](limits.remembered)
        self._failed = _Memory[str](limits.remembered)
        self._failed_notaries = _Memory[str](limits.remembered)

    async def fetch(self, needed: Mapping[KeyPair, int]) -> FetchedKeys:
        """The keys asked for.

        A key that is known but not valid for long enough is still returned, with its own
        validity: whether that matters is for the room version to say.

        Args:
            needed: for each key the time, ms since the epoch, until which it should be valid.

        Returns:
            The keys found; the missing ones are absent and their servers are in `failures`.
        """
        found = {pair: key for pair, key in self._own_keys.items() if pair in needed}
        wanted = {pair: until for pair, until in needed.items() if pair not in found}
        known = await self._store.load_keys(list(wanted)) if wanted else {}
        recent = self._clock() - self._search_again_after
        missing = {
            pair: until
            for pair, until in _unsatisfied(wanted, known).items()
            if not self._searched.is_after(pair, recent)
        }
        if missing:
            await self._search(missing, known)
        for pair in wanted:
            if pair in known:
                found[pair] = VerifyKey(known[pair].verify_key, known[pair].ts_valid_until_ms)
        return FetchedKeys(
            found,
            self._reasons([pair for pair in wanted if pair not in found]),
            self._missing_for_now(_unsatisfied(wanted, known)),
        )

    def forget_failures(self) -> None:
        """Lets the next `fetch` search again for what was not found."""
        self._searched.clear()
        self._failed.clear()
        self._failed_notaries.clear()

    async def _search(self, wanted: dict[KeyPair, int], known: dict[KeyPair, StoredKey]) -> None:
        """Asks notaries, then servers; what comes is stored and added to `known`."""
        missing = wanted
        for notary in self._notaries:
            if missing:
                await self._ask_notary(notary, missing, known)
                missing = _unsatisfied(missing, known)
        await self._ask_servers({server_name for server_name, _ in missing}, known)
        # Only what was not found: who looked into the store before it was found still searches.
        for pair in _unsatisfied(wanted, known):
            self._searched.add(pair, self._clock())

    async def _ask_notary(
        self, notary: Notary, wanted: Mapping[KeyPair, int], known: dict[KeyPair, StoredKey]
    ) -> None:
        recent = self._clock() - self._search_again_after
        if self._failed_notaries.is_after(notary.server_name, recent):
            return
        try:
            responses = await notary.fetch(wanted)
        except FederationError as error:
            self._failed_notaries.add(notary.server_name, self._clock(), error)
            return
        self._failed_notaries.remove(notary.server_name)
        await self._keep(responses, known, from_server=notary.server_name)

    async def _ask_servers(
        self, server_names: Iterable[str], known: dict[KeyPair, StoredKey]
    ) -> None:
        recent = self._clock() - self._search_again_after
        to_ask = [name for name in server_names if not self._failed.is_after(name, recent)]
        for start in range(0, len(to_ask), _SERVERS_PER_WRITE):
            answers = await asyncio.gather(
                *(self._ask_server(name) for name in to_ask[start : start + _SERVERS_PER_WRITE])
            )
            await self._keep([answer for answer in answers if answer is not None], known)

    async def _ask_server(self, server_name: str) -> KeyResponse | None:
        try:
            response = await self._servers.fetch(server_name)
        except FederationError as error:
            self._failed.add(server_name, self._clock(), error)
            return None
        self._failed.remove(server_name)
        return response

    async def _keep(
        self,
        responses: Iterable[KeyResponse],
        known: dict[KeyPair, StoredKey],
        *,
        from_server: str | None = None,
    ) -> None:
        """Stores the keys in `responses`; without `from_server` each came from its own server."""
        now_ms = int(self._clock() * 1000)
        found: dict[KeyPair, StoredKey] = {}
        for response in responses:
            for key in response.keys:
                pair = response.server_name, key.key_id
                found[pair] = _stored(
                    response,
                    key,
                    from_server or response.server_name,
                    now_ms,
                    found.get(pair) or known.get(pair),
                )
        if found:
            await self._store.store_keys(list(found.values()))
            known.update(found)

    def _missing_for_now(self, unsatisfied: Iterable[KeyPair]) -> set[str]:
        """See `FetchedKeys`."""
        server_names = {server_name for server_name, _ in unsatisfied}
        if not self._notaries:
            return {name for name in server_names if self._failed.is_outage(name)}
        return server_names if self._failed_notaries.has_outage() else set()

    def _reasons(self, absent: Iterable[KeyPair]) -> dict[str, str]:
        notaries = "".join(f"; notary {reason}" for reason in self._failed_notaries.reasons())
        return {
            server_name: (
                self._failed.reason(server_name) or f"{server_name}: publishes no key {key_id}"
            )
            + notaries
            for server_name, key_id in absent
        }


def _unsatisfied(
    wanted: Mapping[KeyPair, int], known: Mapping[KeyPair, StoredKey]
) -> dict[KeyPair, int]:
    """Those of `wanted` that are unknown or not known to be valid for long enough."""
    return {
        pair: until
        for pair, until in wanted.items()
        if pair not in known or known[pair].ts_valid_until_ms < until
    }


def _stored(
    response: KeyResponse,
    key: PublishedKey,
    from_server: str,
    now_ms: int,
    previous: StoredKey | None,
) -> StoredKey:
    valid_until_ms = key.valid_until_ts
    if previous is not None and previous.verify_key == key.verify_key and not key.is_old:
        # A notary may answer with an older response than the one we have.
        valid_until_ms = max(valid_until_ms, previous.ts_valid_until_ms)
    return StoredKey(
        server_name=response.server_name,
        key_id=key.key_id,
        verify_key=key.verify_key,
        from_server=from_server,
        ts_added_ms=now_ms,
        ts_valid_until_ms=valid_until_ms,
        key_json=response.key_json,
    )


class _Memory(Generic[Key]):
    """What happened lately, by key: when, and why. The oldest is forgotten first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Key, tuple[float, FederationError | None]] = OrderedDict()

    def add(self, key: Key, moment: float, error: FederationError | None = None) -> None:
        self._entries[key] = moment, error
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def remove(self, key: Key) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()

    def is_after(self, key: Key, moment: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry[0] > moment

    def reason(self, key: Key) -> str:
        entry = self._entries.get(key)
        return "" if entry is None or entry[1] is None else str(entry[1])

    def reasons(self) -> list[str]:
        return [str(error) for _, error in self._entries.values()]

    def is_outage(self, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry[1] is not None and is_outage(entry[1])

    def has_outage(self) -> bool:
        return any(self.is_outage(key) for key in self._entries)
