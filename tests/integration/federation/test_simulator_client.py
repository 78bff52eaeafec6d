"""The federation client and the key ring of this project against the simulated residents."""

from __future__ import annotations

import time
from contextlib import aclosing

import pytest

from federation.checks import Outcome, check_pdus, keys_needed
from federation.client import FederationClient
from federation.errors import HttpError, InvalidResponse, TransportError
from federation.hashing import compute_event_id
from federation.keys import KeyRing
from federation.room_versions import get_room_version
from federation.signing import generate_signing_key, sign_event
from federation.simulator import Mix, SimulatedFederation, lies
from federation.simulator.faults import Garbage
from federation.tls import client_tls_context
from federation.transport import RetryPolicy, open_transport

JOINING = "joining.test"
USER = f"@user:{JOINING}"


class KeysInMemory:
    def __init__(self):
        self.keys = {}

    async def load_keys(self, pairs):
        return {pair: self.keys[pair] for pair in pairs if pair in self.keys}

    async def store_keys(self, keys):
        self.keys.update({(key.server_name, key.key_id): key for key in keys})


@pytest.fixture
async def simulated():
    async with SimulatedFederation(servers=2, unreachable=2, seed=6) as simulated:
        yield simulated


@pytest.fixture
async def transport(simulated):
    transport = open_transport(
        tls=client_tls_context(ca_path=simulated.certificate.certificate),
        ip_range_allowlist=["127.0.0.1/32"],
        retries=RetryPolicy(attempts=1),
    )
    yield transport
    await transport.close()


@pytest.fixture
async def joined(simulated, transport):
    key = generate_signing_key()
    simulated.trust(JOINING, key.key_id, key.verify_key)
    client = FederationClient(JOINING, key, transport)
    room = simulated.create_room("10", members=60, mix=Mix(left=0.1, banned=0.1, renamed=0.5))
    destination = simulated.server_names[0]
    template = await client.make_join(destination, room.room_id, USER)
    version = get_room_version(template.room_version)
    now_ms = int(time.time() * 1000)
    pdu = sign_event({**template.event, "origin_server_ts": now_ms}, version, JOINING, key)
    event_id = compute_event_id(pdu, version)
    answer = await client.send_join(destination, room.room_id, event_id, pdu, omit_members=True)
    assert answer.members_omitted
    assert set(answer.servers_in_room) == {*simulated.server_names, *simulated.unreachable}
    return client, room, destination, event_id


async def full_state(client, room, destination, event_id):
    found = {"pdus": [], "auth_chain": []}
    async with aclosing(client.state(destination, room.room_id, event_id)) as batches:
        async for section, pdus in batches:
            found[section] += pdus
    return found


async def test_the_client_fetches_the_room_and_the_notary_has_all_its_keys(
    simulated, transport, joined
):
    client, room, destination, event_id = joined
    truth = room.state_before(event_id)
    ids = await client.state_ids(destination, room.room_id, event_id)
    assert set(ids.state) == set(truth.values())
    found = await full_state(client, room, destination, event_id)
    raw = [*found["pdus"], *found["auth_chain"]]
    needed = keys_needed([each.pdu for each in raw], room.version)
    assert {server for server, _ in needed} == {*simulated.server_names, *simulated.unreachable}
    ring = KeyRing(transport, KeysInMemory(), trusted_key_servers=[simulated.server_names[1]])
    keys = await ring.fetch(needed)
    assert not keys.failures
    texts = [each.json_text for each in raw]
    results = check_pdus(texts, "10", room.room_id, keys)
    assert {(result.outcome, result.reason) for result in results} == {(Outcome.ACCEPTED, "")}
    checked = {result.event_id for result in results[: len(found["pdus"])]}
    assert checked == set(truth.values())


async def test_the_client_fetches_single_events_and_what_lies_between(joined):
    client, room, destination, event_id = joined
    messages = [room.message(str(number)).event_id for number in range(4)]
    raw = await client.event(destination, messages[0])
    assert raw.pdu == room.pdu(messages[0])
    chain = await client.event_auth(destination, room.room_id, event_id)
    assert len(chain) == len(room.auth_chain([event_id]))
    missing = await client.get_missing_events(
        destination, room.room_id, [event_id], [messages[-1]], 10, 0
    )
    assert [each.pdu for each in missing] == [room.pdu(known) for known in messages[:-1]]


async def test_the_client_names_what_the_resident_does_wrong(simulated, joined):
    client, room, destination, event_id = joined
    faults = simulated.residents[0].faults
    faults.refuse("state_ids", status=403, times=1)
    with pytest.raises(HttpError) as refused:
        await client.state_ids(destination, room.room_id, event_id)
    assert (refused.value.status, refused.value.errcode) == (403, "M_FORBIDDEN")
    faults.rate_limit("state_ids", retry_after_ms=50, times=1)
    with pytest.raises(HttpError) as limited:
        await client.state_ids(destination, room.room_id, event_id)
    assert limited.value.retry_after_ms == 50
    faults.add("state_ids", Garbage(), times=1)
    with pytest.raises(InvalidResponse):
        await client.state_ids(destination, room.room_id, event_id)
    faults.truncate("state", times=1)
    with pytest.raises(TransportError):
        await full_state(client, room, destination, event_id)
    faults.lie("state", lies.remove_field("auth_chain"), times=1)
    with pytest.raises(InvalidResponse):
        await full_state(client, room, destination, event_id)
    await simulated.residents[0].disappear()
    with pytest.raises(TransportError):
        await client.state_ids(destination, room.room_id, event_id)
    await simulated.residents[0].come_back()
    assert (await client.state_ids(destination, room.room_id, event_id)).state
