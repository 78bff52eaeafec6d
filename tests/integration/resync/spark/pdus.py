"""Batches of PDUs, honest and hostile, with the keys to check them."""

import json
import random

from federation.checks import VerifyKey
from federation.room_versions import ROOM_VERSIONS, EventFormat
from federation.signing import SigningKey, sign_event

SERVER = "example.com"
KEY = SigningKey("a_1", bytes(range(32)))
KEYS = {(SERVER, KEY.key_id): VerifyKey(KEY.verify_key, 2**53)}


def room_id_of(room_version):
    return "!" + "r" * 43 if room_version == "12" else "!room:example.com"


def random_texts(room_version, count, seed):
    """JSON texts of which about half are events of the room, signed by `KEY`."""
    rng = random.Random(seed)
    version = ROOM_VERSIONS[room_version]
    return [_spoil(_signed(version, number), rng) for number in range(count)]


def _signed(version, number):
    user_id = f"@user{number}:{SERVER}"
    reference = "$" + "e" * 43
    references = [reference]
    if version.event_format is EventFormat.V1:
        references = [[f"$e:{SERVER}", {"sha256": "x"}]]
    pdu = {
        "type": "m.room.member",
        "state_key": user_id,
        "sender": user_id,
        "room_id": room_id_of(version.identifier),
        "content": {"membership": "join", "displayname": f"Nr. {number} é"},
        "depth": 5,
        "origin_server_ts": 1_700_000_000_000 + number,
        "auth_events": references,
        "prev_events": references,
    }
    if version.event_format is EventFormat.V1:
        pdu["event_id"] = f"${number}:{SERVER}"
    return sign_event(pdu, version, SERVER, KEY)


def _spoil(pdu, rng):
    match rng.randrange(13):
        case 0:
            pdu["content"]["displayname"] = "changed after signing"
        case 1:
            pdu["depth"] += 1
        case 2:
            del pdu["signatures"][SERVER]
        case 3:
            pdu["room_id"] = "!other:example.com"
        case 4:
            pdu["event_id"] = "$\ud800:example.com"
            pdu["sender"] = "@\udfff:example.com"
        case 5:
            return rng.choice(("", "{", "[]", "null", '{"a":NaN}', "[" * 2000))
        case 6:
            pdu["content"]["n"] = rng.choice((1.5, 2**60))
        case 7:
            pdu["signatures"][SERVER] = {"ed25519:unknown": "A" * 86}
    return json.dumps(pdu)
