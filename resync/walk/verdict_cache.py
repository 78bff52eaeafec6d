"""The events that a walk has looked at, loaded in bulk and kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from federation.events import Event
from resync.outliers import Verdict
from storage import auth_edges
from storage import events as event_store
from storage.database import Database


class VerdictCache:
    """Stored events with their verdicts, in which what the walk finds overrides what is stored.

    Loading blocks, so it is used from threads only.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._verdicts: dict[str, Verdict] = {}
        self._unknown: set[str] = set()
        self._chained: set[str] = set()
        self._rejected: set[str] = set()
        self.revision = 0
        """How often a verdict turned into its opposite: what was resolved before may not hold."""

    def set(self, verdict: Verdict) -> None:
        """Takes a verdict that is not stored yet, in place of what is."""
        event_id = verdict.event.event_id
        known = self._verdicts.get(event_id)
        if known is not None and (known.rejection is None) != (verdict.rejection is None):
            self.revision += 1
        self._verdicts[event_id] = verdict
        self._unknown.discard(event_id)
        if verdict.rejection is None:
            self._rejected.discard(event_id)
        else:
            self._rejected.add(event_id)

    def get(self, event_id: str) -> Verdict | None:
        """The verdict on `event_id`, loaded if need be; None if it is not stored."""
        self.preload((event_id,))
        return self._verdicts.get(event_id)

    def known(self, event_ids: Iterable[str]) -> dict[str, Verdict]:
        """The verdicts on those of `event_ids` that are stored, in one query at most."""
        wanted = list(event_ids)
        self.preload(wanted)
        return {
            event_id: self._verdicts[event_id] for event_id in wanted if event_id in self._verdicts
        }

    def preload(self, event_ids: Iterable[str]) -> None:
        """Loads what is not here yet of `event_ids`, in one query."""
        missing = {
            event_id
            for event_id in event_ids
            if event_id not in self._verdicts and event_id not in self._unknown
        }
        if missing:
            self._add(self._database.read_sync(event_store.load_events, missing))
            self._unknown |= missing - self._verdicts.keys()

    def preload_auth_chains(self, event_ids: Iterable[str]) -> None:
        """Loads `event_ids` and all their auth ancestors, in one query."""
        missing = {event_id for event_id in event_ids if event_id not in self._chained}
        if missing:
            chains = self._database.read_sync(event_store.load_auth_chain, missing)
            self._chained.update(missing, chains)
            self._add(chains)

    def load_auth_edges(self, event_ids: Collection[str]) -> Mapping[str, Sequence[str]]:
        """The auth events of `event_ids` and of their auth ancestors, as ids."""
        return self._database.read_sync(auth_edges.load_auth_edges, event_ids)

    @property
    def rejected(self) -> Collection[str]:
        """Ids of the events here that are rejected."""
        return self._rejected

    @property
    def events(self) -> Mapping[str, Event]:
        """The events, as state resolution wants them: what is not here yet is loaded."""
        return _Events(self)

    def _add(self, stored: Mapping[str, event_store.StoredEvent]) -> None:
        for event_id, found in stored.items():
            if event_id not in self._verdicts:
                self.set(Verdict(found.event, found.rejection_reason))


class _Events(Mapping[str, Event]):
    def __init__(self, cache: VerdictCache) -> None:
        self._cache = cache

    def __getitem__(self, event_id: str) -> Event:
        verdict = self._cache.get(event_id)
        if verdict is None:
            raise KeyError(event_id)
        return verdict.event

    def __iter__(self) -> Iterator[str]:
        return iter(self._cache._verdicts)

    def __len__(self) -> int:
        return len(self._cache._verdicts)
