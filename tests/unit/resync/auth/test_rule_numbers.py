"""The numbers of the rules, against numbers read off the room version pages."""

from __future__ import annotations

import pytest

from federation.room_versions import ROOM_VERSIONS
from resync.auth.rule_numbers import Rule, rule_number


@pytest.mark.parametrize(
    ("rule", "by_version"),
    [
        (Rule.CREATE_CREATOR, {"1": "1.4", "10": "1.4"}),
        (Rule.CREATE_ADDITIONAL_CREATORS, {"12": "1.4"}),
        (Rule.AUTH_EVENTS_CREATE, {"1": "2.4", "11": "2.4"}),
        (Rule.FEDERATE, {"1": "3", "11": "3", "12": "4"}),
        (Rule.ALIASES_DOMAIN, {"1": "4.2", "5": "4.2"}),
        (Rule.JOIN_OTHERWISE, {"1": "5.2.6", "6": "4.2.6", "8": "4.3.7", "12": "5.3.7"}),
        (Rule.JOIN_RESTRICTED_AUTHORISER, {"8": "4.3.5.2", "12": "5.3.5.2"}),
        (Rule.INVITE_OTHERWISE, {"1": "5.3.5", "7": "4.3.5", "8": "4.4.5", "12": "5.4.5"}),
        (Rule.INVITE_THIRD_PARTY_SENDER, {"1": "5.3.1.6", "12": "5.4.1.6"}),
        (Rule.LEAVE_BANNED, {"1": "5.4.3", "6": "4.4.3", "9": "4.5.3", "12": "5.5.3"}),
        (Rule.BAN_OTHERWISE, {"1": "5.5.3", "6": "4.5.3", "9": "4.6.3", "12": "5.6.3"}),
        (Rule.KNOCK_OTHERWISE, {"7": "4.6.4", "8": "4.7.4", "12": "5.7.4"}),
        (Rule.MEMBER_UNKNOWN, {"1": "5.6", "6": "4.6", "7": "4.7", "8": "4.8", "12": "5.8"}),
        (Rule.SENDER_JOINED, {"5": "6", "6": "5", "12": "6"}),
        (Rule.REQUIRED_LEVEL, {"5": "8", "6": "7", "12": "8"}),
        (Rule.POWER_LEVELS_USERS, {"1": "10.1", "6": "9.1", "10": "9.3", "12": "10.3"}),
        (Rule.POWER_LEVELS_CREATORS, {"12": "10.4"}),
        (Rule.POWER_LEVELS_USERS_NEW, {"1": "10.7", "9": "9.7", "11": "9.9", "12": "10.10"}),
        (Rule.REDACTION_DOMAIN, {"1": "11.2", "2": "11.2"}),
    ],
)
def test_numbers(rule: Rule, by_version: dict[str, str]) -> None:
    found = {number: rule_number(rule, ROOM_VERSIONS[number]) for number in by_version}
    assert found == by_version


def test_no_number_is_used_twice() -> None:
    for version in ROOM_VERSIONS.values():
        numbers = []
        for rule in Rule:
            try:
                numbers.append(rule_number(rule, version))
            except KeyError:
                continue
        assert len(numbers) == len(set(numbers)) > 60
