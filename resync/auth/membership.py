"""The rules for `m.room.member`: rule 5 in versions 1 to 5 and 12, rule 4 in versions 6 to 11.

Each function names its rule by the number it has in version 12; `rule_numbers` has the others.
The rule on the signature of the server in `join_authorised_via_users_server` (5.2) is not here:
`federation.signing.required_signers` demands that signature before any rule is looked at.
"""

from __future__ import annotations

from typing import Any

from federation.events import Event
from resync.auth.auth_state import JOIN_RULES_KEY, POWER_LEVELS_KEY, AuthState
from resync.auth.errors import rejected_by
from resync.auth.levels import creator_of, named_level, user_level
from resync.auth.rule_numbers import Rule
from resync.auth.third_party_invite import check_third_party_invite


def check_member(event: Event, create: Event, auth_state: AuthState) -> None:
    """Rule 5.

    Raises:
        NotAuthorised: a part of rule 5 rejects it.
        MalformedPowerLevel: a power level that decides cannot be read.
    """
    version = event.room_version
    target = event.state_key
    # 5.1 If there is no state_key property, or no membership property in content, reject.
    if target is None or "membership" not in event.content:
        raise rejected_by(Rule.MEMBER_FORMAT, version, "no state_key or no membership")
    membership = event.content["membership"]
    if membership == "join":
        _check_join(event, target, create, auth_state)
    elif membership == "invite":
        _check_invite(event, target, create, auth_state)
    elif membership == "leave":
        _check_leave(event, target, create, auth_state)
    elif membership == "ban":
        _check_ban(event, target, create, auth_state)
    elif membership == "knock" and version.knocking:
        _check_knock(event, target, auth_state)
    else:
        # 5.8 Otherwise, the membership is unknown. Reject.
        raise rejected_by(Rule.MEMBER_UNKNOWN, version, "unknown membership")


def membership_of(user_id: str, auth_state: AuthState) -> Any:
    """The user's current membership: None without a member event, else whatever it holds."""
    member = auth_state.get(("m.room.member", user_id))
    return None if member is None else member.content.get("membership")


def _join_rule(auth_state: AuthState) -> Any:
    """The current join rule; `invite` where nothing says otherwise."""
    join_rules = auth_state.get(JOIN_RULES_KEY)
    return "invite" if join_rules is None else join_rules.content.get("join_rule", "invite")


def _check_join(event: Event, target: str, create: Event, auth_state: AuthState) -> None:
    """Rule 5.3: `membership` is `join`."""
    version = event.room_version
    # 5.3.1 If the only previous event is an m.room.create and the state_key is the creator, allow.
    if event.prev_event_ids == (create.event_id,) and target == creator_of(create):
        return
    # 5.3.2 If the sender does not match state_key, reject.
    if event.sender != target:
        raise rejected_by(Rule.JOIN_SENDER, version, f"{event.sender} cannot join for {target}")
    # 5.3.3 If the sender is banned, reject.
    membership = membership_of(target, auth_state)
    if membership == "ban":
        raise rejected_by(Rule.JOIN_BANNED, version, f"{target} is banned")
    join_rule = _join_rule(auth_state)
    invited_or_joined = membership in ("join", "invite")
    # 5.3.4 If the join_rule is invite or knock then allow if membership state is invite or join.
    if join_rule == "invite" or (join_rule == "knock" and version.knocking):
        if not invited_or_joined:
            raise rejected_by(Rule.JOIN_OTHERWISE, version, f"{target} is not invited")
    # 5.3.5 If the join_rule is restricted or knock_restricted: ...
    elif (join_rule == "restricted" and version.restricted_joins) or (
        join_rule == "knock_restricted" and version.knock_restricted_joins
    ):
        # 5.3.5.1 If membership state is join or invite, allow.
        if not invited_or_joined:
            _check_authoriser(event, create, auth_state)
    # 5.3.6 If the join_rule is public, allow.
    elif join_rule != "public":
        # 5.3.7 Otherwise, reject.
        raise rejected_by(Rule.JOIN_OTHERWISE, version, "the join rule does not let anyone in")


def _check_authoriser(event: Event, create: Event, auth_state: AuthState) -> None:
    """Rule 5.3.5.2.

    If the `join_authorised_via_users_server` key in `content` is not a user with sufficient
    permission to invite other users or is not a joined member of the room, reject.
    """
    authoriser = event.content.get("join_authorised_via_users_server")
    reason = None
    if type(authoriser) is not str:
        reason = "nobody in the room authorised the join"
    elif membership_of(authoriser, auth_state) != "join":
        reason = f"{authoriser}, who authorised the join, is not in the room"
    else:
        power_levels = auth_state.get(POWER_LEVELS_KEY)
        if user_level(authoriser, create, power_levels) < named_level("invite", power_levels):
            reason = f"{authoriser}, who authorised the join, may not invite"
    if reason is not None:
        raise rejected_by(Rule.JOIN_RESTRICTED_AUTHORISER, event.room_version, reason)


def _check_invite(event: Event, target: str, create: Event, auth_state: AuthState) -> None:
    """Rule 5.4: `membership` is `invite`."""
    version = event.room_version
    target_membership = membership_of(target, auth_state)
    # 5.4.1 If content has a third_party_invite property: ...
    if "third_party_invite" in event.content:
        check_third_party_invite(event, target, target_membership == "ban", auth_state)
        return
    # 5.4.2 If the sender's current membership state is not join, reject.
    if membership_of(event.sender, auth_state) != "join":
        raise rejected_by(Rule.INVITE_SENDER, version, f"{event.sender} is not in the room")
    # 5.4.3 If target user's current membership state is join or ban, reject.
    if target_membership in ("join", "ban"):
        raise rejected_by(
            Rule.INVITE_TARGET, version, f"{target} is in the room already, or banned"
        )
    # 5.4.4 If the sender's power level is greater than or equal to the invite level, allow.
    power_levels = auth_state.get(POWER_LEVELS_KEY)
    if user_level(event.sender, create, power_levels) < named_level("invite", power_levels):
        # 5.4.5 Otherwise, reject.
        raise rejected_by(Rule.INVITE_OTHERWISE, version, f"{event.sender} may not invite")


def _check_leave(event: Event, target: str, create: Event, auth_state: AuthState) -> None:
    """Rule 5.5: `membership` is `leave`."""
    version = event.room_version
    sender = event.sender
    membership = membership_of(sender, auth_state)
    # 5.5.1 If the sender matches state_key, allow if and only if that user's current membership
    #       state is invite, join, or knock.
    if sender == target:
        if membership in ("join", "invite") or (membership == "knock" and version.knocking):
            return
        raise rejected_by(Rule.LEAVE_OWN, version, f"{sender} has nothing to leave")
    # 5.5.2 If the sender's current membership state is not join, reject.
    if membership != "join":
        raise rejected_by(Rule.LEAVE_SENDER, version, f"{sender} is not in the room")
    power_levels = auth_state.get(POWER_LEVELS_KEY)
    sender_level = user_level(sender, create, power_levels)
    # 5.5.3 If the target user's current membership state is ban, and the sender's power level is
    #       less than the ban level, reject.
    if membership_of(target, auth_state) == "ban" and sender_level < named_level(
        "ban", power_levels
    ):
        raise rejected_by(Rule.LEAVE_BANNED, version, f"{sender} may not lift bans")
    # 5.5.4 If the sender's power level is greater than or equal to the kick level, and the target
    #       user's power level is less than the sender's power level, allow.
    if sender_level < named_level("kick", power_levels) or sender_level <= user_level(
        target, create, power_levels
    ):
        # 5.5.5 Otherwise, reject.
        raise rejected_by(Rule.LEAVE_OTHERWISE, version, f"{sender} may not kick {target}")


def _check_ban(event: Event, target: str, create: Event, auth_state: AuthState) -> None:
    """Rule 5.6: `membership` is `ban`."""
    version = event.room_version
    sender = event.sender
    # 5.6.1 If the sender's current membership state is not join, reject.
    if membership_of(sender, auth_state) != "join":
        raise rejected_by(Rule.BAN_SENDER, version, f"{sender} is not in the room")
    # 5.6.2 If the sender's power level is greater than or equal to the ban level, and the target
    #       user's power level is less than the sender's power level, allow.
    power_levels = auth_state.get(POWER_LEVELS_KEY)
    sender_level = user_level(sender, create, power_levels)
    if sender_level < named_level("ban", power_levels) or sender_level <= user_level(
        target, create, power_levels
    ):
        # 5.6.3 Otherwise, reject.
        raise rejected_by(Rule.BAN_OTHERWISE, version, f"{sender} may not ban {target}")


def _check_knock(event: Event, target: str, auth_state: AuthState) -> None:
    """Rule 5.7: `membership` is `knock`, from version 7 on."""
    version = event.room_version
    # 5.7.1 If the join_rule is anything other than knock or knock_restricted, reject.
    join_rule = _join_rule(auth_state)
    if join_rule != "knock" and not (
        join_rule == "knock_restricted" and version.knock_restricted_joins
    ):
        raise rejected_by(Rule.KNOCK_JOIN_RULE, version, "the join rule does not allow knocking")
    # 5.7.2 If sender does not match state_key, reject.
    if event.sender != target:
        raise rejected_by(Rule.KNOCK_SENDER, version, f"{event.sender} cannot knock for {target}")
    # 5.7.3 If the sender's current membership is not ban, invite, or join, allow.
    if membership_of(target, auth_state) in ("ban", "invite", "join"):
        # 5.7.4 Otherwise, reject.
        raise rejected_by(Rule.KNOCK_OTHERWISE, version, f"{target} is banned, invited or joined")
