"""The edges of a room's graph: `prev_events`, forward and backward extremities, depth.

Outliers have no place in the graph. Rejected and soft-failed events have one, but are no
extremities, and an event that only such events refer to stays an extremity.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, and_, case, delete, or_, select, text

from federation.events import Event
from storage import bulk
from storage.schema import (
    event_backward_extremities,
    event_edges,
    event_forward_extremities,
    event_json,
    events,
    rejections,
)

SOFT_FAILED_METADATA = '{"soft_failed":true}'


def load_forward_extremities(connection: Connection, room_id: str) -> list[str]:
    """The forward extremities of a room, sorted."""
    table = event_forward_extremities
    return list(
        connection.scalars(
            select(table.c.event_id).where(table.c.room_id == room_id).order_by(table.c.event_id)
        )
    )


def load_backward_extremities(connection: Connection, room_id: str) -> list[str]:
    """The events that events of the room refer to and that are not in its graph, sorted."""
    table = event_backward_extremities
    return list(
        connection.scalars(
            select(table.c.event_id).where(table.c.room_id == room_id).order_by(table.c.event_id)
        )
    )


def add_to_graph(connection: Connection, event: Event, *, counts: bool) -> None:
    """Give a stored event its place: edges, extremities on both sides, the room's depth.

    Args:
        counts: whether it is accepted and not soft-failed.
    """
    room_id, event_id = event.room_id, event.event_id
    bulk.insert(
        connection,
        event_edges,
        ("event_id", "prev_event_id"),
        [(event_id, prev_id) for prev_id in event.prev_event_ids],
    )
    _update_backward(connection, event)
    if counts:
        overtaken = _prevs_through_uncounted(connection, event.prev_event_ids)
        connection.execute(
            delete(event_forward_extremities).where(
                event_forward_extremities.c.room_id == room_id,
                bulk.is_in(connection, event_forward_extremities.c.event_id, overtaken),
            )
        )
        if not _with_counting_children(connection, room_id, [event_id]):
            bulk.insert(
                connection,
                event_forward_extremities,
                ("event_id", "room_id"),
                [(event_id, room_id)],
            )
    connection.execute(
        text(
            "INSERT INTO room_depth (room_id, min_depth) VALUES (:room_id, :depth)"
            " ON CONFLICT (room_id) DO UPDATE SET min_depth = excluded.min_depth"
            " WHERE room_depth.min_depth > excluded.min_depth"
        ),
        {"room_id": room_id, "depth": event.depth},
    )


def add_all_to_graph(
    connection: Connection, room_id: str, new: Sequence[Event], counting: Collection[str]
) -> None:
    """`add_to_graph` for many events of one room at once.

    Args:
        new: stored events that have no place in the graph yet.
        counting: ids of those of them that are accepted and not soft-failed.
    """
    if not new:
        return
    bulk.insert(
        connection,
        event_edges,
        ("event_id", "prev_event_id"),
        [(event.event_id, prev_id) for event in new for prev_id in event.prev_event_ids],
    )
    _update_backward_of_all(connection, room_id, new)
    _advance_forward(connection, room_id, new, set(counting))
    connection.execute(
        text(
            "INSERT INTO room_depth (room_id, min_depth) VALUES (:room_id, :depth)"
            " ON CONFLICT (room_id) DO UPDATE SET min_depth = excluded.min_depth"
            " WHERE room_depth.min_depth > excluded.min_depth"
        ),
        {"room_id": room_id, "depth": min(event.depth for event in new)},
    )


def _update_backward_of_all(connection: Connection, room_id: str, new: Sequence[Event]) -> None:
    table = event_backward_extremities
    ids = [event.event_id for event in new]
    connection.execute(
        delete(table).where(
            table.c.room_id == room_id, bulk.is_in(connection, table.c.event_id, ids)
        )
    )
    prev_ids = {prev_id for event in new for prev_id in event.prev_event_ids}
    in_graph = connection.scalars(
        select(events.c.event_id).where(
            bulk.is_in(connection, events.c.event_id, prev_ids), events.c.outlier.is_(False)
        )
    )
    missing = sorted(prev_ids - set(in_graph))
    if missing:
        connection.execute(
            text(
                "INSERT INTO event_backward_extremities (event_id, room_id)"
                " VALUES (:event_id, :room_id) ON CONFLICT DO NOTHING"
            ),
            [{"event_id": prev_id, "room_id": room_id} for prev_id in missing],
        )


def _advance_forward(
    connection: Connection, room_id: str, new: Sequence[Event], counting: set[str]
) -> None:
    current = set(load_forward_extremities(connection, room_id))
    prevs = {
        prev_id for event in new if event.event_id in counting for prev_id in event.prev_event_ids
    }
    overtaken = _prevs_through_uncounted(connection, prevs)
    added = counting - overtaken - _followed_through_uncounted(connection, room_id, counting)
    gone = current & overtaken
    if gone:
        connection.execute(
            delete(event_forward_extremities).where(
                event_forward_extremities.c.room_id == room_id,
                bulk.is_in(connection, event_forward_extremities.c.event_id, gone),
            )
        )
    bulk.insert(
        connection,
        event_forward_extremities,
        ("event_id", "room_id"),
        [(event_id, room_id) for event_id in sorted(added - current)],
    )


def find_followed(connection: Connection, room_id: str, event_ids: Collection[str]) -> set[str]:
    """Those of `event_ids` that an accepted, not soft-failed event of the room follows."""
    return _followed_through_uncounted(connection, room_id, event_ids)


def follow_rejections(connection: Connection, room_id: str, changed: Collection[str]) -> None:
    """Bring the forward extremities in line after events became rejected or accepted.

    A room never loses its last one: a partial join that turns out to be rejected keeps its place.
    """
    current = set(load_forward_extremities(connection, room_id))
    candidates = current | set(changed) | _prevs_through_uncounted(connection, changed)
    prevs = select(event_edges.c.prev_event_id).where(
        bulk.is_in(connection, event_edges.c.event_id, changed)
    )
    candidates |= _prevs_through_uncounted(connection, set(connection.scalars(prevs)))
    counting = _counting(connection, candidates)
    wanted = counting - _followed_through_uncounted(connection, room_id, counting)
    if not wanted or wanted == current:
        return
    connection.execute(
        delete(event_forward_extremities).where(event_forward_extremities.c.room_id == room_id)
    )
    bulk.insert(
        connection,
        event_forward_extremities,
        ("event_id", "room_id"),
        [(event_id, room_id) for event_id in sorted(wanted)],
    )


def _update_backward(connection: Connection, event: Event) -> None:
    connection.execute(
        delete(event_backward_extremities).where(
            event_backward_extremities.c.room_id == event.room_id,
            event_backward_extremities.c.event_id == event.event_id,
        )
    )
    in_graph = set(
        connection.scalars(
            select(events.c.event_id).where(
                bulk.is_in(connection, events.c.event_id, event.prev_event_ids),
                events.c.outlier.is_(False),
            )
        )
    )
    missing = [prev_id for prev_id in event.prev_event_ids if prev_id not in in_graph]
    if missing:
        connection.execute(
            text(
                "INSERT INTO event_backward_extremities (event_id, room_id)"
                " VALUES (:event_id, :room_id) ON CONFLICT DO NOTHING"
            ),
            [{"event_id": prev_id, "room_id": event.room_id} for prev_id in missing],
        )


def _is_counting() -> ColumnElement[bool]:
    """Of a row of events joined with event_json and, outer, rejections."""
    return and_(
        events.c.outlier.is_(False),
        rejections.c.event_id.is_(None),
        event_json.c.internal_metadata.not_like('%"soft_failed":true%'),
    )


def _counting(connection: Connection, event_ids: Collection[str]) -> set[str]:
    """Those of `event_ids` that are in the graph, accepted and not soft-failed."""
    return set(
        connection.scalars(
            select(events.c.event_id)
            .join(event_json, event_json.c.event_id == events.c.event_id)
            .outerjoin(rejections, rejections.c.event_id == events.c.event_id)
            .where(bulk.is_in(connection, events.c.event_id, event_ids), _is_counting())
        )
    )


def _with_counting_children(
    connection: Connection, room_id: str, event_ids: Collection[str]
) -> set[str]:
    """Those of `event_ids` that an accepted, not soft-failed event of the room refers to."""
    return set(
        connection.scalars(
            select(event_edges.c.prev_event_id)
            .join(events, events.c.event_id == event_edges.c.event_id)
            .join(event_json, event_json.c.event_id == events.c.event_id)
            .outerjoin(rejections, rejections.c.event_id == events.c.event_id)
            .where(
                events.c.room_id == room_id,
                bulk.is_in(connection, event_edges.c.prev_event_id, event_ids),
                _is_counting(),
            )
        )
    )


def _prevs_through_uncounted(connection: Connection, event_ids: Collection[str]) -> set[str]:
    """`event_ids`, and the prev events of those that are rejected or soft-failed, and so on."""
    uncounted = or_(
        rejections.c.event_id.is_not(None),
        event_json.c.internal_metadata.like('%"soft_failed":true%'),
    )
    steps = (
        select(event_edges.c.prev_event_id.label("event_id"))
        .join(event_json, event_json.c.event_id == event_edges.c.event_id)
        .outerjoin(rejections, rejections.c.event_id == event_edges.c.event_id)
        .where(uncounted)
    )
    first = steps.where(bulk.is_in(connection, event_edges.c.event_id, event_ids))
    through = first.cte("through", recursive=True)
    through = through.union(
        steps.join(through, through.c.event_id == event_edges.c.event_id).where(uncounted)
    )
    return set(event_ids) | set(connection.scalars(select(through.c.event_id)))


def _followed_through_uncounted(
    connection: Connection, room_id: str, event_ids: Collection[str]
) -> set[str]:
    """Those of `event_ids` that a counting event follows, with nothing between but rejected and
    soft-failed ones.

    Events of other rooms do not count: a stranger may name any event as a parent.
    """
    steps = (
        select(
            event_edges.c.prev_event_id.label("ancestor"),
            event_edges.c.event_id,
            case((_is_counting(), 1), else_=0).label("counts"),
        )
        .join(events, events.c.event_id == event_edges.c.event_id)
        .join(event_json, event_json.c.event_id == event_edges.c.event_id)
        .outerjoin(rejections, rejections.c.event_id == event_edges.c.event_id)
    )
    first = steps.where(
        events.c.room_id == room_id,
        bulk.is_in(connection, event_edges.c.prev_event_id, event_ids),
    )
    below = first.cte("below", recursive=True)
    below = below.union(
        select(
            below.c.ancestor,
            event_edges.c.event_id,
            case((_is_counting(), 1), else_=0),
        )
        .join(below, below.c.event_id == event_edges.c.prev_event_id)
        .join(events, events.c.event_id == event_edges.c.event_id)
        .join(event_json, event_json.c.event_id == event_edges.c.event_id)
        .outerjoin(rejections, rejections.c.event_id == event_edges.c.event_id)
        .where(below.c.counts == 0, events.c.room_id == room_id)
    )
    return set(connection.scalars(select(below.c.ancestor).where(below.c.counts == 1)))
