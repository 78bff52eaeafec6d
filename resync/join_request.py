"""A wish to join a room, checked before anything is asked of anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from federation.errors import InvalidIdentifier
from federation.identifiers import check_room_id, check_server_name, check_user_id, domain_of
from resync.errors import ResyncError

MAX_VIA_SERVERS = 50


class InvalidJoinRequest(ResyncError):
    """The room, the user or a server to join through is not what it should be."""


@dataclass(frozen=True)
class JoinRequest:
    """A well-formed wish: `user_id` is of this server, `via` has at least one other server."""

    room_id: str
    via: tuple[str, ...]
    user_id: str


def check_join_request(
    room_id: str, via: Sequence[str], user_id: str, *, server_name: str
) -> JoinRequest:
    """The request, if it makes sense on the homeserver `server_name`.

    Raises `InvalidJoinRequest`.
    """
    try:
        check_room_id(room_id)
        check_user_id(user_id)
        for name in via:
            check_server_name(name)
    except InvalidIdentifier as error:
        raise InvalidJoinRequest(str(error)) from error
    if domain_of(user_id) != server_name:
        raise InvalidJoinRequest(
            f"{user_id} is not a user of this server: only users of {server_name} can be joined"
        )
    if len(via) > MAX_VIA_SERVERS:
        raise InvalidJoinRequest(f"at most {MAX_VIA_SERVERS} servers can be given to join through")
    others = tuple(name for name in dict.fromkeys(via) if name != server_name)
    if not others:
        raise InvalidJoinRequest("at least one other server is needed to join through")
    return JoinRequest(room_id, others, user_id)
