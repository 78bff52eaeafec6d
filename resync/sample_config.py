"""The commented sample that `resync generate-config` prints. Its values are the defaults."""

from __future__ import annotations

import json

from federation.address_policy import DEFAULT_IP_RANGE_DENYLIST

_SAMPLE = """\
# Configuration of the resync worker.
#
# Every key can also be set in the environment, which wins over this file: RESYNC_ and the key in
# capitals, two underscores for each step down, for example RESYNC_DATABASE or
# RESYNC_FEDERATION__LISTEN__PORT. Lists are written as in YAML:
# RESYNC_FEDERATION__TRUSTED_KEY_SERVERS=[matrix.org]
# Relative paths start at the directory of this file. Unknown keys are an error.

# The name of this homeserver: the part after the colon in its users' ids.
server_name: @SERVER_NAME@

# The signing key, in the format and with the file that Synapse uses. Made if it is missing.
signing_key_path: signing.key

# The name of this worker in leases and replication streams. Each worker needs its own.
instance_name: resync1

# sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/NAME. More than one worker needs PostgreSQL.
database: sqlite:///resync.db

federation:
  # Where other homeservers fetch our keys and send us events. Without the paths it speaks HTTP, for
  # a proxy that has the certificate. `listen: null` if another process serves the keys.
  listen:
    bind: 127.0.0.1
    port: 8448
    # tls_certificate_path: tls.crt
    # tls_private_key_path: tls.key
  # Check the certificates of other homeservers. Turn it off only in tests.
  verify_certificates: true
  # Addresses that are never connected to, whatever a name resolves to.
  ip_range_denylist:
@DENYLIST@
  # Exceptions to the list above.
  ip_range_allowlist: []
  # Notaries: servers that are asked for the keys of others, before those themselves.
  trusted_key_servers: []

replication:
  # Where readers of the replication streams connect. `tcp: null` turns it off.
  tcp:
    bind: 127.0.0.1
    port: 9092
  # The Redis over which Synapse's workers replicate. Left out or null: no Redis.
  # redis:
  #   url: redis://127.0.0.1:6379/0

# The admin API, /metrics, /health and the status page. `admin: null` turns them off.
admin:
  bind: 127.0.0.1
  port: 9093
  # The bearer token of the API. Made, readable by its owner only, if it is missing.
  token_path: admin.token

# Work on at least min_events events is done on Spark. Left out or null: in this process, which on
# one machine is faster; see docs/scaling.md for clusters. `settings` are Spark's own.
# spark:
#   master: "spark://host:7077"
#   min_events: 50000
#   settings:
#     spark.executor.memory: 4g

resync:
  # Rooms that one worker resyncs at once.
  concurrent_rooms: 4
  # A room that failed is tried again after backoff_min_seconds, then after twice as long each
  # time, up to backoff_max_seconds. It is never given up.
  backoff_min_seconds: 5.0
  backoff_max_seconds: 3600.0
  # Another worker takes over the rooms of one that has not been heard of for so long.
  lease_ttl_seconds: 60.0

verification:
  # Processes that check hashes and signatures. 0: one for each core.
  processes: 0

log:
  # console: key=value for people; json: one object a line. Always on standard error.
  format: console
  # debug, info, warning or error.
  level: info
"""


def sample_config(server_name: str = "example.com") -> str:
    """The sample as YAML, for a homeserver of that name."""
    denylist = "\n".join(f"    - {json.dumps(network)}" for network in DEFAULT_IP_RANGE_DENYLIST)
    return _SAMPLE.replace("@SERVER_NAME@", json.dumps(server_name)).replace("@DENYLIST@", denylist)
