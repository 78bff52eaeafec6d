import re
from pathlib import Path

import pytest
import yaml

from resync.config import Config, ConfigError, load_config, settings
from resync.sample_config import sample_config

MINIMAL = "server_name: example.com\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "resync.yaml"
        path.write_text(text)
        return path

    return write


def problems(path, environment=None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environment or {})
    assert str(caught.value).splitlines() == [f"{path}: {one}" for one in caught.value.problems]
    return caught.value.problems


def test_only_the_server_name_is_required(write):
    config = load_config(write(MINIMAL), {})
    assert config.server_name == "example.com"
    assert config.federation.listen.port == 8448
    assert config.replication.redis is None


def test_missing_server_name(write):
    assert problems(write("instance_name: a\n")) == ["server_name: required, but not set"]


def test_every_value_of_the_design_is_read(write):
    config = load_config(
        write(
            """
server_name: example.com
signing_key_path: signing.key
instance_name: resync1
database: postgresql://user:password@host/name
federation:
  listen: {bind: 127.0.0.1, port: 8448, tls_certificate_path: a.crt, tls_private_key_path: a.key}
  verify_certificates: false
  ip_range_denylist: [10.0.0.0/8]
  ip_range_allowlist: ["::1/128"]
  trusted_key_servers: [matrix.org]
replication:
  tcp: {bind: 127.0.0.1, port: 9092}
  redis: {url: redis://127.0.0.1:6379/0}
admin: {bind: 127.0.0.1, port: 9093, token_path: admin.token}
spark: {master: "local[*]", min_events: 50000}
"""
        ),
        {},
    )
    assert config.database == "postgresql://user:password@host/name"
    assert config.federation.verify_certificates is False
    assert config.federation.ip_range_denylist == ["10.0.0.0/8"]
    assert config.replication.redis.url == "redis://127.0.0.1:6379/0"


def test_relative_paths_start_at_the_file(write, tmp_path):
    config = load_config(
        write(
            MINIMAL
            + "federation: {listen: {tls_certificate_path: a.crt, tls_private_key_path: /a.key}}\n"
        ),
        {},
    )
    assert config.signing_key_path == tmp_path / "signing.key"
    assert config.admin.token_path == tmp_path / "admin.token"
    assert config.database == f"sqlite:///{tmp_path}/resync.db"
    assert config.federation.listen.tls_certificate_path == tmp_path / "a.crt"
    assert config.federation.listen.tls_private_key_path == Path("/a.key")


def test_an_absolute_sqlite_file_stays(write):
    config = load_config(write(MINIMAL + "database: sqlite:////var/lib/resync.db\n"), {})
    assert config.database == "sqlite:////var/lib/resync.db"


def test_the_environment_alone_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(None, {"RESYNC_SERVER_NAME": "localhost:8008"})
    assert config.server_name == "localhost:8008"
    assert config.signing_key_path == tmp_path / "signing.key"


def test_the_environment_wins_over_the_file(write):
    path = write(MINIMAL + "federation: {listen: {port: 1, bind: 0.0.0.0}}\n")
    config = load_config(path, {"RESYNC_FEDERATION__LISTEN__PORT": "2"})
    assert (config.federation.listen.port, config.federation.listen.bind) == (2, "0.0.0.0")


def test_every_setting_can_come_from_the_environment(write, tmp_path):
    """Write each default into the environment: the result must be the same as the defaults."""
    defaults = load_config(write(MINIMAL + "replication: {redis: {url: 'redis://h/0'}}\n"), {})
    environment = {}
    for key, value in settings(defaults):
        name = "RESYNC_" + key.upper().replace(".", "__")
        if isinstance(value, list | bool) or value is None:
            environment[name] = yaml.safe_dump(value).removesuffix("...\n").strip()
        else:
            environment[name] = str(value)
    assert len(environment) > 25
    assert load_config(None, environment) == defaults


def test_values_of_the_environment_keep_their_types(write):
    config = load_config(
        write(MINIMAL),
        {
            "RESYNC_INSTANCE_NAME": "42",
            "RESYNC_FEDERATION__VERIFY_CERTIFICATES": "false",
            "RESYNC_FEDERATION__TRUSTED_KEY_SERVERS": "[matrix.org, 'localhost:8008']",
            "RESYNC_RESYNC__BACKOFF_MIN_SECONDS": "0.5",
            "RESYNC_LOG__FORMAT": "json",
            "RESYNC_REPLICATION__TCP": "null",
            "RESYNC_REPLICATION__REDIS__URL": "redis://h:6379/1",
        },
    )
    assert config.instance_name == "42"
    assert config.federation.verify_certificates is False
    assert config.federation.trusted_key_servers == ["matrix.org", "localhost:8008"]
    assert config.resync.backoff_min_seconds == 0.5
    assert config.log.format == "json"
    assert config.replication.tcp is None
    assert config.replication.redis.url == "redis://h:6379/1"


def test_a_whole_section_and_a_key_of_it_from_the_environment(write):
    config = load_config(
        write(MINIMAL + "admin: null\n"),
        {"RESYNC_ADMIN": "{bind: 0.0.0.0}", "RESYNC_ADMIN__PORT": "1"},
    )
    assert (config.admin.bind, config.admin.port) == ("0.0.0.0", 1)


def test_a_key_from_the_environment_turns_its_section_on(write):
    config = load_config(write(MINIMAL + "admin: null\n"), {"RESYNC_ADMIN__PORT": "7"})
    assert config.admin.port == 7


def test_other_variables_are_ignored(write):
    load_config(write(MINIMAL), {"RESYNC_TEST_POSTGRESQL": "x", "PATH": "/bin", "RESYNCX": "1"})


def test_unknown_variables_are_errors(write):
    assert problems(
        write(MINIMAL), {"RESYNC_DATABSE": "x", "RESYNC_FEDERATION__LISTEN__PRT": "1"}
    ) == [
        "environment variable RESYNC_DATABSE: unknown key; did you mean RESYNC_DATABASE?",
        (
            "environment variable RESYNC_FEDERATION__LISTEN__PRT: unknown key; "
            "did you mean RESYNC_FEDERATION__LISTEN__PORT?"
        ),
    ]


def test_a_variable_of_the_wrong_type_is_named(write):
    [problem] = problems(write(MINIMAL), {"RESYNC_FEDERATION__LISTEN__PORT": "many"})
    assert problem == (
        "federation.listen.port: must be a whole number, not the text 'many' "
        "(from RESYNC_FEDERATION__LISTEN__PORT)"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("databse: x", "databse: unknown key; did you mean database?"),
        (
            "federation: {verify_certificate: true}",
            (
                "federation.verify_certificate: unknown key; "
                "did you mean federation.verify_certificates?"
            ),
        ),
        (
            "verify_certificates: true",
            "verify_certificates: unknown key; did you mean federation.verify_certificates?",
        ),
        ("zzz: 1", "zzz: unknown key"),
        (
            "federation: {listen: {port: '8448'}}",
            "federation.listen.port: must be a whole number, not the text '8448'",
        ),
        (
            "federation: {listen: {port: true}}",
            "federation.listen.port: must be a whole number, not true",
        ),
        (
            "federation: {listen: {port: 65536}}",
            "federation.listen.port: must be less than or equal to 65535, not 65536",
        ),
        (
            "federation: {verify_certificates: 'no'}",
            "federation.verify_certificates: must be true or false, not the text 'no'",
        ),
        ("federation: 3", "federation: must be a section with keys of its own, not 3"),
        (
            "federation: {trusted_key_servers: matrix.org}",
            "federation.trusted_key_servers: must be a list, not the text 'matrix.org'",
        ),
        (
            "federation: {ip_range_denylist: [10.0.0.0/33]}",
            "federation.ip_range_denylist: '10.0.0.0/33' is not an IP range such as 10.0.0.0/8",
        ),
        (
            "federation: {listen: {tls_certificate_path: a}}",
            (
                "federation.listen: tls_certificate_path and tls_private_key_path must be given "
                "together, or both left out to listen in plain HTTP behind a proxy"
            ),
        ),
        (
            "log: {level: loud}",
            "log.level: must be 'debug', 'info', 'warning' or 'error', not the text 'loud'",
        ),
        ("spark: {min_events: 0}", "spark.min_events: must be greater than or equal to 1, not 0"),
        ("instance_name: a b", "instance_name: must not have spaces or control characters in it"),
        (
            "resync: {backoff_min_seconds: 10, backoff_max_seconds: 5}",
            "resync: backoff_max_seconds must not be below backoff_min_seconds",
        ),
        ("database: 5", "database: must be text, not 5"),
        (
            "database: mysql://h/n",
            (
                "database: 'mysql' is not supported: must be sqlite:///FILE or "
                "postgresql://USER:PASSWORD@HOST/NAME"
            ),
        ),
        ("database: sqlite://", "database: SQLite needs a file: sqlite:///resync.db"),
        (
            "replication: {redis: {url: 'http://h'}}",
            "replication.redis.url: must start with redis://, rediss:// or unix://",
        ),
        ("replication: {redis: {}}", "replication.redis.url: required, but not set"),
        ("signing_key_path: null", "signing_key_path: must be a path, not null"),
    ],
)
def test_one_line_for_each_kind_of_mistake(write, text, expected):
    assert problems(write(MINIMAL + text)) == [expected]


def test_all_problems_are_told_at_once(write):
    found = problems(
        write("server_name: 'a b'\nlog: {level: 3}\nspark: {masterr: x}\n"),
        {"RESYNC_NOPE_NOPE": "1"},
    )
    assert len(found) == 4
    assert sorted(one.split(":")[0] for one in found) == [
        "environment variable RESYNC_NOPE_NOPE",
        "log.level",
        "server_name",
        "spark.masterr",
    ]


@pytest.mark.parametrize("name", ["", "a b", "http://example.com", "example.com:x", "é.com"])
def test_malformed_server_names(write, name):
    [problem] = problems(write(yaml.safe_dump({"server_name": name})))
    assert problem.startswith("server_name: ")


def test_a_password_is_in_no_message(write):
    found = problems(write(MINIMAL + "database: mysql://user:hunter2@h/n\n"))
    found += problems(write(MINIMAL + "database: 'postgresql://user:hunter2@h:port/n'\n"))
    config = load_config(write(MINIMAL + "database: 'postgresql://user:hunter2@h/n'\n"), {})
    assert "hunter2" not in " ".join(found) + repr(config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", r"line \d+, column \d+: is not valid YAML: .*"),
        ("a: b: c", r"line 1, column 5: is not valid YAML: .*"),
        ("- a", "must be a mapping of keys to values"),
        ("just text", "must be a mapping of keys to values"),
        ("server_name: a\nserver_name: b", "line 2: the key 'server_name' is given twice"),
        ("x: !!python/object/apply:os.getcwd []", "line 1, column 4: is not valid YAML: .*"),
        ("a: \x00", "is not valid YAML: .*"),
        ("[" * 5000, "is not valid YAML: .*|line .*"),
    ],
)
def test_files_that_are_no_mapping(write, text, expected):
    [problem] = problems(write(text))
    assert re.fullmatch(expected, problem)


def test_a_file_that_cannot_be_read(tmp_path):
    assert problems(tmp_path / "none.yaml") == ["cannot be read: No such file or directory"]
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert problems(tmp_path / "binary.yaml") == ["is not a text file in UTF-8"]


def test_a_section_without_keys_is_an_empty_one(write):
    assert load_config(write(MINIMAL + "federation:\nreplication:\n"), {}) == load_config(
        write(MINIMAL), {}
    )


def test_null_turns_optional_sections_off(write):
    config = load_config(
        write(MINIMAL + "federation: {listen: null}\nreplication: {tcp: null}\nadmin: null\n"), {}
    )
    assert config.federation.listen is None
    assert config.replication.tcp is None
    assert config.admin is None


def test_the_sample_loads_and_says_the_defaults(write):
    assert load_config(write(sample_config()), {}) == load_config(write(MINIMAL), {})


def test_the_sample_names_every_setting():
    config = Config.model_validate(
        {"server_name": "a", "replication": {"redis": {"url": "redis://h"}}}
    )
    sample = sample_config()
    for key, _ in settings(config):
        assert re.search(rf"^[ #]*{key.rsplit('.')[-1]}:", sample, re.MULTILINE), key


def test_the_commented_settings_of_the_sample_are_right(write):
    text = re.sub(r"^(\s*)# (tls_\w+|redis|  url):", r"\1\2:", sample_config("a.b"), flags=re.M)
    config = load_config(write(text), {})
    assert config.server_name == "a.b"
    assert config.federation.listen.tls_certificate_path is not None
    assert config.replication.redis is not None
