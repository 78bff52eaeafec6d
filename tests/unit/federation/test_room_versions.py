import copy
import pickle

import pytest

from federation.errors import UnknownRoomVersion
from federation.room_versions import (
    ROOM_VERSIONS,
    EventFormat,
    RedactionRules,
    StateResolution,
    get_room_version,
)


def first_versions(flag):
    """The versions in which a rule that came to stay is in force."""
    return [int(name) for name, version in ROOM_VERSIONS.items() if getattr(version, flag)]


@pytest.mark.parametrize(
    ("flag", "since"),
    [
        ("enforces_key_validity", 5),
        ("strict_canonical_json", 6),
        ("notification_levels_checked", 6),
        ("knocking", 7),
        ("restricted_joins", 8),
        ("integer_power_levels", 10),
        ("knock_restricted_joins", 10),
        ("implicit_room_creator", 11),
        ("redacts_in_content", 11),
        ("room_id_is_create_hash", 12),
        ("creators_outrank_power_levels", 12),
    ],
)
def test_rules_that_came_to_stay(flag, since):
    assert first_versions(flag) == list(range(since, 13))


def test_rules_that_went_away():
    assert first_versions("special_cases_aliases") == [1, 2, 3, 4, 5]
    assert first_versions("redaction_auth_by_domain") == [1, 2]


def test_families():
    versions = ROOM_VERSIONS.values()
    v1, v3, v4, v12 = EventFormat.V1, EventFormat.V3, EventFormat.V4, EventFormat.V12
    assert [version.event_format for version in versions] == [v1, v1, v3, *[v4] * 8, v12]
    assert [version.redaction_rules for version in versions] == [
        *[RedactionRules.V1] * 5,
        *[RedactionRules.V6] * 2,
        RedactionRules.V8,
        *[RedactionRules.V9] * 2,
        *[RedactionRules.V11] * 2,
    ]
    assert [version.state_resolution for version in versions] == [
        StateResolution.V1,
        *[StateResolution.V2] * 10,
        StateResolution.V2_1,
    ]


@pytest.mark.parametrize("identifier", ["0", "13", "org.example.x", "", None, 10, ["10"]])
def test_unknown_versions_are_refused(identifier):
    with pytest.raises(UnknownRoomVersion, match="1 to 12"):
        get_room_version(identifier)


@pytest.mark.parametrize("identifier", list(ROOM_VERSIONS))
def test_a_version_is_one_object_in_every_process(identifier):
    version = get_room_version(identifier)
    assert version.identifier == identifier
    assert pickle.loads(pickle.dumps(version)) is version
    assert copy.deepcopy(version) is version
