"""The authorisation rules, in the order of the room version pages.

Rules 1 and, from version 12 on, 2 to 11 carry the numbers of version 12 here, whose page is the
most complete; `rule_numbers` has the numbers of the others, and `NotAuthorised.rule` is always the
number on the page of the event's own version. What differs between versions is in
`federation.room_versions`.

Where the specification is silent, the rules do what deployed servers do:

* A user id in power levels or `additional_creators` is a string with a `@` before a colon.
* `m.federate` that is anything but `true` closes the room to other servers.
* Before version 10 a `null` level in the power levels in force means its default.
* A level in force that cannot be read rejects what depends on it.

Where a deployed server is known to differ from the text, the text is followed:

* Membership changes of users of other servers in a room with `m.federate: false` are judged by
  the sender's server alone ("the `sender` domain of the event does not match").
* Power levels before version 10 may be strings in exactly the format of the room version pages:
  no underscores, no digits of other scripts, and `true` is no integer.
* New power levels are compared with the room's power levels whatever their own `state_key`.
* `m.room.redaction` without an event id in `redacts` falls under 11.3 (versions 1 and 2).
* A third-party invite is valid if any of its signatures matches any public key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from federation.events import Event, StateKey
from resync.auth.auth_state import CREATE_KEY, POWER_LEVELS_KEY, AuthState
from resync.auth.create import check_create, domain
from resync.auth.errors import rejected_by
from resync.auth.levels import MalformedPowerLevel, named_level, required_level, user_level
from resync.auth.membership import check_member, membership_of
from resync.auth.power_levels import check_power_levels
from resync.auth.rule_numbers import Rule
from resync.auth.selection import CREATE, auth_types_for_event


def check_auth_rules(event: Event, auth_state: Mapping[StateKey, Event]) -> None:
    """Check `event` against a room state: every rule but the one on its `auth_events`.

    Args:
        event: an event with valid signatures, those of `join_authorised_via_users_server` among
            them.
        auth_state: the state to check against, at least the entries that
            `resync.auth.state_needed_for_event` names. In every room version, version 12 among
            them, it holds the create event. More entries do no harm.

    Raises:
        NotAuthorised: a rule rejects the event. Nothing else is raised, whatever the content.
    """
    if event.type == "m.room.create":
        check_create(event)
    else:
        check_state_dependent_rules(event, cast(AuthState, auth_state))


def check_auth_events(
    event: Event, auth_events: Mapping[str, Event], rejected: Collection[str]
) -> None:
    """Rule 2, from version 12 on rules 2 and 3: the event's own `auth_events`.

    It depends on no room state, so an event needs it once, when it is received.

    Args:
        event: the event.
        auth_events: event id to event, at least those that `event` names. From version 12 on the
            create event may be there too; it is what rule 2 looks at.
        rejected: ids of events that were themselves rejected, among them at least those of
            `auth_events`.

    Raises:
        NotAuthorised: a part of the rule rejects the event, or one of the auth events is unknown.
    """
    if event.type == "m.room.create":
        return
    version = event.room_version
    if version.room_id_is_create_hash:
        # 2. If the event's room_id is not an event ID for an accepted (not rejected)
        #    m.room.create event, with the sigil ! instead of $, reject.
        create_id = "$" + event.room_id[1:]
        create = auth_events.get(create_id)
        if create_id in rejected or (create is not None and create.type != "m.room.create"):
            raise rejected_by(
                Rule.ROOM_ID, version, "the room id is not that of an accepted create event"
            )
    # 3.1 for an entry that is there twice, of which `auth_event_ids` keeps one.
    if len(event.pdu.get("auth_events", ())) != len(event.auth_event_ids):
        raise rejected_by(Rule.AUTH_EVENTS_DUPLICATE, version, "an auth event is named twice")
    selection = auth_types_for_event(event)
    seen: set[tuple[str, str | None]] = set()
    for event_id in event.auth_event_ids:
        auth_event = auth_events.get(event_id)
        if auth_event is None:
            raise rejected_by(Rule.AUTH_EVENTS, version, f"auth event {event_id} is unknown")
        key = (auth_event.type, auth_event.state_key)
        # 3.1 If there are duplicate entries for a given type and state_key pair, reject.
        if key in seen:
            raise rejected_by(
                Rule.AUTH_EVENTS_DUPLICATE, version, f"a second auth event for {_shown(key)}"
            )
        seen.add(key)
        # 3.2 If there are entries whose type and state_key don't match those specified by the auth
        #     events selection algorithm, reject.
        if key not in selection:
            raise rejected_by(
                Rule.AUTH_EVENTS_SELECTION, version, f"an auth event for {_shown(key)}"
            )
        # 3.3 If there are entries which were themselves rejected, reject.
        if event_id in rejected:
            raise rejected_by(
                Rule.AUTH_EVENTS_REJECTED, version, f"auth event {event_id} was rejected"
            )
        # 3.5 If any event in auth_events has a room_id which does not match that of the event
        #     being authorised, reject.
        if auth_event.room_id != event.room_id:
            raise rejected_by(
                Rule.AUTH_EVENTS_ROOM, version, f"auth event {event_id} is of another room"
            )
    # 2.4 (up to version 11) If there is no m.room.create event among the entries, reject.
    if not version.room_id_is_create_hash and CREATE not in seen:
        raise rejected_by(
            Rule.AUTH_EVENTS_CREATE, version, "there is no create event among the auth events"
        )


def check_state_dependent_rules(event: Event, auth_state: AuthState) -> None:
    """The rules after those on the create event and on `auth_events`: version 12's 4 to 11.

    State resolution uses this one; there, create events have been checked on receipt.

    Args:
        event: the event.
        auth_state: as for `check_auth_rules`. Only its `get` is used.

    Raises:
        NotAuthorised: a rule rejects the event.
    """
    if event.type == "m.room.create":
        return
    create = auth_state.get(CREATE_KEY)
    if create is None:
        rule = Rule.ROOM_ID if event.room_version.room_id_is_create_hash else Rule.FEDERATE
        raise rejected_by(rule, event.room_version, "the room has no create event")
    try:
        _check(event, create, auth_state)
    except MalformedPowerLevel as error:
        raise rejected_by(Rule.POWER_LEVELS, event.room_version, str(error)) from None


def _check(event: Event, create: Event, auth_state: AuthState) -> None:
    version = event.room_version
    event_type = event.type
    sender = event.sender

    # 2. The room id is that of the create event. It cannot be otherwise in honest state.
    if version.room_id_is_create_hash and create.room_id != event.room_id:
        raise rejected_by(Rule.ROOM_ID, version, "the create event is that of another room")

    # 4. If the content of the m.room.create event in the room state has the property m.federate
    #    set to false, and the sender domain of the event does not match the sender domain of the
    #    create event, reject.
    if create.content.get("m.federate", True) is not True and domain(sender) != domain(
        create.sender
    ):
        raise rejected_by(Rule.FEDERATE, version, "the room is closed to other servers")

    # 4. (versions 1 to 5) If type is m.room.aliases: ...
    if event_type == "m.room.aliases" and version.special_cases_aliases:
        _check_aliases(event)
        return

    # 5. If type is m.room.member: ...
    if event_type == "m.room.member":
        check_member(event, create, auth_state)
        return

    # 6. If the sender's current membership state is not join, reject.
    if membership_of(sender, auth_state) != "join":
        raise rejected_by(Rule.SENDER_JOINED, version, f"{sender} is not in the room")

    power_levels = auth_state.get(POWER_LEVELS_KEY)
    sender_level = user_level(sender, create, power_levels)

    # 7. If type is m.room.third_party_invite: allow if and only if sender's current power level is
    #    greater than or equal to the invite level.
    if event_type == "m.room.third_party_invite":
        if sender_level < named_level("invite", power_levels):
            raise rejected_by(Rule.THIRD_PARTY_INVITE_LEVEL, version, f"{sender} may not invite")
        return

    # 8. If the event type's required power level is greater than the sender's power level, reject.
    state_key = event.state_key
    if required_level(event_type, state_key is not None, power_levels) > sender_level:
        raise rejected_by(Rule.REQUIRED_LEVEL, version, f"{sender} may not send {event_type[:255]}")

    # 9. If the event has a state_key that starts with an @ and does not match the sender, reject.
    if state_key is not None and state_key.startswith("@") and state_key != sender:
        raise rejected_by(Rule.STATE_KEY, version, f"{sender} may not set another user's state")

    # 10. If type is m.room.power_levels: ...
    if event_type == "m.room.power_levels":
        check_power_levels(event, create, auth_state)

    # 11. (versions 1 and 2) If type is m.room.redaction: ...
    elif event_type == "m.room.redaction" and version.redaction_auth_by_domain:
        _check_redaction(event, create, power_levels)

    # 11. Otherwise, allow.


def _check_aliases(event: Event) -> None:
    """Rule 4 of versions 1 to 5: `m.room.aliases`."""
    # 4.1 If event has no state_key, reject.
    if event.state_key is None:
        raise rejected_by(Rule.ALIASES_STATE_KEY, event.room_version, "aliases without state_key")
    # 4.2 If sender's domain doesn't match state_key, reject.
    if domain(event.sender) != event.state_key:
        raise rejected_by(Rule.ALIASES_DOMAIN, event.room_version, "the aliases of another server")


def _check_redaction(event: Event, create: Event, power_levels: Event | None) -> None:
    """Rule 11 of versions 1 and 2: `m.room.redaction`."""
    # 11.1 If the sender's power level is greater than or equal to the redact level, allow.
    if user_level(event.sender, create, power_levels) >= named_level("redact", power_levels):
        return
    # 11.2 If the domain of the event_id of the event being redacted is the same as the domain of
    #      the event_id of the m.room.redaction, allow.
    redacts = event.pdu.get("redacts")
    if type(redacts) is str:
        redacted_domain = domain(redacts)
        if redacted_domain is not None and redacted_domain == domain(event.event_id):
            return
    # 11.3 Otherwise, reject.
    raise rejected_by(
        Rule.REDACTION_OTHERWISE, event.room_version, f"{event.sender} may not redact this event"
    )


def _shown(key: tuple[str, str | None]) -> str:
    return f"{key[0][:255]}/{key[1] if key[1] is None else key[1][:255]}"
