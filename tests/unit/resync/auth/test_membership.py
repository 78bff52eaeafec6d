"""The rules on `m.room.member`: rule 5, in versions 6 to 11 rule 4.

Tests are named after version 12's numbers; `member_rule` translates.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.resync.auth.room import (
    ALICE,
    BOB,
    CAROL,
    CREATOR,
    Room,
    later_rule,
    member_rule,
    versions,
)

ALL = versions(1)
MEMBERSHIPS = (None, "join", "invite", "leave", "ban", "knock")


def room_with(room_version: str, **memberships: str | None) -> Room:
    """A room with power levels where alice (level 50) and bob (0) have the given memberships."""
    room = Room(room_version)
    room.power_levels({ALICE: 50})
    for name, membership in memberships.items():
        if membership is not None:
            room.member({"alice": ALICE, "bob": BOB, "carol": CAROL}[name], membership)
    return room


@pytest.mark.parametrize("room_version", ALL)
def test_5_1_no_state_key_or_no_membership(room_version: str) -> None:
    room = room_with(room_version)
    expected = ("4" if 6 <= int(room_version) <= 11 else "5") + ".1"
    assert room.verdict_on(ALICE, "m.room.member", {"membership": "join"}) == expected
    assert room.verdict_on(ALICE, "m.room.member", {}, ALICE) == expected


class TestJoin:
    @pytest.mark.parametrize("room_version", ALL)
    def test_5_3_1_the_creator_joins_after_the_create_event(self, room_version: str) -> None:
        room = Room(room_version)
        del room.state["m.room.member", CREATOR]
        content = {"membership": "join"}
        first = (room.create.event_id,)
        join = room.event(CREATOR, "m.room.member", content, CREATOR, prev_events=first)
        assert room.verdict(join) == ""
        later = room.event(CREATOR, "m.room.member", content, CREATOR, prev_events=("$x:a",))
        assert room.verdict(later) == member_rule(room_version, "3.7")
        two = (*first, "$x:a")
        later = room.event(CREATOR, "m.room.member", content, CREATOR, prev_events=two)
        assert room.verdict(later) == member_rule(room_version, "3.7")
        other = room.event(ALICE, "m.room.member", content, ALICE, prev_events=first)
        assert room.verdict(other) == member_rule(room_version, "3.7")

    @pytest.mark.parametrize("room_version", versions(1, 10))
    def test_5_3_1_the_creator_is_whom_the_content_names(self, room_version: str) -> None:
        room = Room(room_version, {"creator": ALICE})
        prev = (room.create.event_id,)
        content = {"membership": "join"}
        assert (
            room.verdict(room.event(ALICE, "m.room.member", content, ALICE, prev_events=prev)) == ""
        )

    @pytest.mark.parametrize("room_version", versions(11))
    def test_5_3_1_the_creator_is_the_sender_from_version_11_on(self, room_version: str) -> None:
        room = Room(room_version, {"creator": ALICE, "additional_creators": [ALICE]})
        prev = (room.create.event_id,)
        join = room.event(ALICE, "m.room.member", {"membership": "join"}, ALICE, prev_events=prev)
        assert room.verdict(join) == member_rule(room_version, "3.7")

    @pytest.mark.parametrize("room_version", ALL)
    def test_5_3_2_nobody_joins_for_another(self, room_version: str) -> None:
        room = room_with(room_version)
        room.join_rule("public")
        assert room.verdict_on_member(CREATOR, BOB, "join") == member_rule(room_version, "3.2")

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("join_rule", ["public", "invite"])
    def test_5_3_3_the_banned_stay_out(self, room_version: str, join_rule: str) -> None:
        room = room_with(room_version, bob="ban")
        room.join_rule(join_rule)
        assert room.verdict_on_member(BOB, BOB, "join") == member_rule(room_version, "3.3")

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", MEMBERSHIPS)
    @pytest.mark.parametrize("join_rule", ["invite", "knock", None])
    def test_5_3_4_invite_only(
        self, room_version: str, membership: str | None, join_rule: str | None
    ) -> None:
        room = room_with(room_version, bob=membership)
        if join_rule is not None:
            room.join_rule(join_rule)
        known = join_rule != "knock" or int(room_version) >= 7
        expected = member_rule(room_version, "3.7")
        if membership == "ban":
            expected = member_rule(room_version, "3.3")
        elif membership in ("join", "invite") and known:
            expected = ""
        assert room.verdict_on_member(BOB, BOB, "join") == expected

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize(("join_rule", "since"), [("restricted", 8), ("knock_restricted", 10)])
    def test_5_3_5_restricted(self, room_version: str, join_rule: str, since: int) -> None:
        supported = int(room_version) >= since
        otherwise = member_rule(room_version, "3.7")
        unauthorised = member_rule(room_version, "3.5.2") if supported else otherwise
        allowed = "" if supported else otherwise
        via = "join_authorised_via_users_server"

        room = room_with(room_version, alice="join", carol="invite")
        room.join_rule(join_rule)
        # 5.3.5.1 If membership state is join or invite, allow.
        assert room.verdict_on_member(ALICE, ALICE, "join") == allowed
        assert room.verdict_on_member(CAROL, CAROL, "join") == allowed
        # 5.3.5.2 the authoriser: missing, malformed, not in the room, in the room.
        assert room.verdict_on_member(BOB, BOB, "join") == unauthorised
        for authoriser in (None, 1, [ALICE], {}, "", CAROL, BOB, "@nobody:a.example"):
            content = {via: authoriser}
            assert room.verdict_on_member(BOB, BOB, "join", **content) == unauthorised
        assert room.verdict_on_member(BOB, BOB, "join", **{via: ALICE}) == allowed
        # "with sufficient permission to invite other users"
        room.power_levels({ALICE: 50}, invite=51)
        assert room.verdict_on_member(BOB, BOB, "join", **{via: ALICE}) == unauthorised
        assert room.verdict_on_member(BOB, BOB, "join", **{via: CREATOR}) == allowed

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", [None, "join", "invite", "leave", "knock"])
    def test_5_3_6_public(self, room_version: str, membership: str | None) -> None:
        room = room_with(room_version, bob=membership)
        room.join_rule("public")
        assert room.verdict_on_member(BOB, BOB, "join") == ""

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("join_rule", ["private", "", None, 1, [], {}, ["public"], "PUBLIC"])
    def test_5_3_7_other_join_rules(self, room_version: str, join_rule: Any) -> None:
        room = room_with(room_version, bob="join")
        room.join_rule(join_rule)
        assert room.verdict_on_member(BOB, BOB, "join") == member_rule(room_version, "3.7")


class TestInvite:
    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", [None, "invite", "leave", "ban", "knock"])
    def test_5_4_2_the_sender_is_not_joined(
        self, room_version: str, membership: str | None
    ) -> None:
        room = room_with(room_version, alice=membership)
        assert room.verdict_on_member(ALICE, BOB, "invite") == member_rule(room_version, "4.2")

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", MEMBERSHIPS)
    def test_5_4_3_the_target_is_joined_or_banned(
        self, room_version: str, membership: str | None
    ) -> None:
        room = room_with(room_version, alice="join", bob=membership)
        expected = member_rule(room_version, "4.3") if membership in ("join", "ban") else ""
        assert room.verdict_on_member(ALICE, BOB, "invite") == expected

    @pytest.mark.parametrize("room_version", ALL)
    def test_5_4_4_the_invite_level(self, room_version: str) -> None:
        room = room_with(room_version, alice="join")
        room.power_levels({ALICE: 50}, invite=51)
        assert room.verdict_on_member(ALICE, BOB, "invite") == member_rule(room_version, "4.5")
        room.power_levels({ALICE: 50}, invite=50)
        assert room.verdict_on_member(ALICE, BOB, "invite") == ""

    @pytest.mark.parametrize("room_version", ALL)
    def test_the_invite_level_is_0_by_default(self, room_version: str) -> None:
        room = room_with(room_version, alice="join")
        room.power_levels({ALICE: 0})
        assert room.verdict_on_member(ALICE, BOB, "invite") == ""
        room.power_levels({ALICE: -1})
        assert room.verdict_on_member(ALICE, BOB, "invite") == member_rule(room_version, "4.5")


class TestLeave:
    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", MEMBERSHIPS)
    def test_5_5_1_ones_own(self, room_version: str, membership: str | None) -> None:
        room = room_with(room_version, bob=membership)
        allowed = membership in ("join", "invite") or (
            membership == "knock" and int(room_version) >= 7
        )
        expected = "" if allowed else member_rule(room_version, "5.1")
        assert room.verdict_on_member(BOB, BOB, "leave") == expected

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", [None, "invite", "leave", "ban", "knock"])
    def test_5_5_2_the_sender_is_not_joined(
        self, room_version: str, membership: str | None
    ) -> None:
        room = room_with(room_version, alice=membership, bob="join")
        assert room.verdict_on_member(ALICE, BOB, "leave") == member_rule(room_version, "5.2")

    @pytest.mark.parametrize("room_version", ALL)
    def test_5_5_3_to_unban_takes_the_ban_level_too(self, room_version: str) -> None:
        room = room_with(room_version, alice="join", bob="ban")
        room.power_levels({ALICE: 50}, ban=51, kick=50)
        assert room.verdict_on_member(ALICE, BOB, "leave") == member_rule(room_version, "5.3")
        room.power_levels({ALICE: 50}, ban=50, kick=51)
        assert room.verdict_on_member(ALICE, BOB, "leave") == member_rule(room_version, "5.5")
        room.power_levels({ALICE: 50}, ban=50, kick=50)
        assert room.verdict_on_member(ALICE, BOB, "leave") == ""

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", [None, "join", "invite", "leave", "knock"])
    def test_5_5_4_kicks(self, room_version: str, membership: str | None) -> None:
        room = room_with(room_version, alice="join", bob=membership)
        rejected = member_rule(room_version, "5.5")
        for alice, bob, expected in [(50, 49, ""), (49, 0, rejected), (50, 50, rejected)]:
            room.power_levels({ALICE: alice, BOB: bob})
            assert room.verdict_on_member(ALICE, BOB, "leave") == expected

    @pytest.mark.parametrize("room_version", ALL)
    def test_the_level_to_kick_is_50_without_power_levels(self, room_version: str) -> None:
        room = Room(room_version)
        room.member(ALICE, "join")
        assert room.verdict_on_member(ALICE, CREATOR, "leave") == member_rule(room_version, "5.5")
        assert room.verdict_on_member(CREATOR, ALICE, "leave") == ""


class TestBan:
    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", [None, "invite", "leave", "ban", "knock"])
    def test_5_6_1_the_sender_is_not_joined(
        self, room_version: str, membership: str | None
    ) -> None:
        room = room_with(room_version, alice=membership)
        assert room.verdict_on_member(ALICE, BOB, "ban") == member_rule(room_version, "6.1")

    @pytest.mark.parametrize("room_version", ALL)
    @pytest.mark.parametrize("membership", MEMBERSHIPS)
    def test_5_6_2_levels(self, room_version: str, membership: str | None) -> None:
        room = room_with(room_version, alice="join", bob=membership)
        rejected = member_rule(room_version, "6.3")
        for alice, bob, expected in [(50, 49, ""), (49, 0, rejected), (50, 50, rejected)]:
            room.power_levels({ALICE: alice, BOB: bob})
            assert room.verdict_on_member(ALICE, BOB, "ban") == expected
        room.power_levels({ALICE: 10, BOB: 0}, ban=10)
        assert room.verdict_on_member(ALICE, BOB, "ban") == ""

    def test_creators_of_version_12_ban_but_not_each_other(self) -> None:
        room = Room("12", {"additional_creators": [ALICE]})
        room.power_levels({BOB: 2**53 - 1})
        for user in (ALICE, BOB):
            room.member(user, "join")
        assert room.verdict_on_member(CREATOR, BOB, "ban") == ""
        assert room.verdict_on_member(ALICE, BOB, "ban") == ""
        assert room.verdict_on_member(BOB, ALICE, "ban") == "5.6.3"
        assert room.verdict_on_member(CREATOR, ALICE, "ban") == "5.6.3"
        assert room.verdict_on_member(ALICE, CREATOR, "leave") == "5.5.5"


class TestKnock:
    @pytest.mark.parametrize("room_version", versions(7))
    @pytest.mark.parametrize(
        ("join_rule", "since"), [("knock", 7), ("knock_restricted", 10), ("public", 99)]
    )
    def test_5_7_1_the_join_rule(self, room_version: str, join_rule: str, since: int) -> None:
        room = room_with(room_version)
        assert room.verdict_on_member(BOB, BOB, "knock") == member_rule(room_version, "7.1")
        room.join_rule(join_rule)
        expected = "" if int(room_version) >= since else member_rule(room_version, "7.1")
        assert room.verdict_on_member(BOB, BOB, "knock") == expected

    @pytest.mark.parametrize("room_version", versions(7))
    def test_5_7_2_nobody_knocks_for_another(self, room_version: str) -> None:
        room = room_with(room_version)
        room.join_rule("knock")
        assert room.verdict_on_member(CREATOR, BOB, "knock") == member_rule(room_version, "7.2")

    @pytest.mark.parametrize("room_version", versions(7))
    @pytest.mark.parametrize("membership", MEMBERSHIPS)
    def test_5_7_3_the_membership(self, room_version: str, membership: str | None) -> None:
        room = room_with(room_version, bob=membership)
        room.join_rule("knock")
        allowed = membership in (None, "leave", "knock")
        expected = "" if allowed else member_rule(room_version, "7.4")
        assert room.verdict_on_member(BOB, BOB, "knock") == expected

    @pytest.mark.parametrize("room_version", versions(1, 6))
    def test_there_is_no_knocking_before_version_7(self, room_version: str) -> None:
        room = room_with(room_version)
        room.join_rule("knock")
        assert room.verdict_on_member(BOB, BOB, "knock") == member_rule(room_version, "8")


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("membership", ["", "JOIN", "banned", None, 1, ["join"], {"join": 1}, True])
def test_5_8_unknown_memberships(room_version: str, membership: Any) -> None:
    room = room_with(room_version, alice="join")
    room.join_rule("public")
    assert room.verdict_on_member(ALICE, ALICE, membership) == member_rule(room_version, "8")


@pytest.mark.parametrize("room_version", ALL)
@pytest.mark.parametrize("membership", [None, 1, ["join"], {"join": 1}, "Join"])
def test_a_malformed_membership_in_the_state_is_no_membership(
    room_version: str, membership: Any
) -> None:
    room = room_with(room_version)
    room.member(ALICE, membership)
    assert room.verdict_on_member(ALICE, BOB, "invite") == member_rule(room_version, "4.2")
    assert room.verdict_on(ALICE, "m.room.message", {}) == later_rule(room_version, 6)
