"""The redaction algorithm: what is left of an event when it is redacted.

It also decides what an event's signatures and its reference hash cover. Source: the sections
"Redactions" of the room version pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from federation.room_versions import RedactionRules, RoomVersion

_KEYS_V11 = frozenset(
    {
        "event_id",
        "type",
        "room_id",
        "sender",
        "state_key",
        "content",
        "hashes",
        "signatures",
        "depth",
        "prev_events",
        "auth_events",
        "origin_server_ts",
    }
)
_KEYS_V1 = _KEYS_V11 | {"prev_state", "origin", "membership"}

_POWER_LEVELS_V1 = frozenset(
    {
        "ban",
        "events",
        "events_default",
        "kick",
        "redact",
        "state_default",
        "users",
        "users_default",
    }
)

# Per event type, the keys of `content` that stay. Types that are not listed lose all of them.
_CONTENT_V6: Mapping[str, frozenset[str]] = {
    "m.room.member": frozenset({"membership"}),
    "m.room.create": frozenset({"creator"}),
    "m.room.join_rules": frozenset({"join_rule"}),
    "m.room.power_levels": _POWER_LEVELS_V1,
    "m.room.history_visibility": frozenset({"history_visibility"}),
}
_CONTENT_V1 = {**_CONTENT_V6, "m.room.aliases": frozenset({"aliases"})}
_CONTENT_V8 = {**_CONTENT_V6, "m.room.join_rules": frozenset({"join_rule", "allow"})}
_CONTENT_V9 = {
    **_CONTENT_V8,
    "m.room.member": frozenset({"membership", "join_authorised_via_users_server"}),
}
_CONTENT_V11 = {
    **_CONTENT_V9,
    "m.room.power_levels": _POWER_LEVELS_V1 | {"invite"},
    "m.room.redaction": frozenset({"redacts"}),
}

_KEYS: Mapping[RedactionRules, frozenset[str]] = MappingProxyType(
    dict.fromkeys(RedactionRules, _KEYS_V1) | {RedactionRules.V11: _KEYS_V11}
)
_CONTENT: Mapping[RedactionRules, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        RedactionRules.V1: _CONTENT_V1,
        RedactionRules.V6: _CONTENT_V6,
        RedactionRules.V8: _CONTENT_V8,
        RedactionRules.V9: _CONTENT_V9,
        RedactionRules.V11: _CONTENT_V11,
    }
)
_NOTHING: frozenset[str] = frozenset()


def redact(pdu: Mapping[str, Any], version: RoomVersion) -> dict[str, Any]:
    """What is left of `pdu` when it is redacted: a new object that shares the values it keeps.

    A PDU of any shape is accepted; a `content` that is not an object becomes an empty one.
    """
    rules = version.redaction_rules
    kept = _KEYS[rules]
    redacted = {key: value for key, value in pdu.items() if key in kept}
    if "content" in redacted:
        redacted["content"] = _redact_content(pdu.get("type"), redacted["content"], rules)
    return redacted


def _redact_content(event_type: Any, content: Any, rules: RedactionRules) -> dict[str, Any]:
    if type(content) is not dict or type(event_type) is not str:
        return {}
    if rules is RedactionRules.V11 and event_type == "m.room.create":
        return content
    kept = _CONTENT[rules].get(event_type, _NOTHING)
    redacted = {key: content[key] for key in kept if key in content}
    if rules is RedactionRules.V11 and event_type == "m.room.member":
        invite = content.get("third_party_invite")
        if type(invite) is dict:
            # Without `signed` an empty object stays: deployed servers agree on that.
            redacted["third_party_invite"] = (
                {"signed": invite["signed"]} if "signed" in invite else {}
            )
    return redacted
