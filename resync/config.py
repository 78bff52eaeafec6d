"""The configuration: one YAML file, overridden key by key from the environment.

`load_config` is strict on purpose. A key that does not exist, a value of the wrong type or a
file that is not YAML raises `ConfigError` with one line per problem, and nothing is started.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from federation.address_policy import DEFAULT_IP_RANGE_DENYLIST
from federation.errors import InvalidIdentifier
from federation.identifiers import check_server_name
from resync.config_sources import merge, nearest_key, read_environment, read_yaml

Port = Annotated[int, Field(ge=0, le=65535)]
# Strict validation would refuse a plain string for a path, which is all that YAML can give.
ConfigPath = Annotated[Path, Field(strict=False)]
Bind = Annotated[str, Field(min_length=1)]


class ConfigError(Exception):
    """The configuration cannot be used. `problems` has one line for each thing to put right."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.source = source
        self.problems = problems


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FederationListener(_Section):
    """Where other homeservers reach us; plain HTTP if no certificate is given."""

    bind: Bind = "127.0.0.1"
    port: Port = 8448
    tls_certificate_path: ConfigPath | None = None
    tls_private_key_path: ConfigPath | None = None

    @model_validator(mode="after")
    def _certificate_and_key_go_together(self) -> FederationListener:
        if (self.tls_certificate_path is None) != (self.tls_private_key_path is None):
            raise ValueError(
                "tls_certificate_path and tls_private_key_path must be given together, "
                "or both left out to listen in plain HTTP behind a proxy"
            )
        return self


class FederationConfig(_Section):
    """How we speak to other homeservers. `listen: null` when another process serves our keys."""

    listen: FederationListener | None = FederationListener()
    verify_certificates: bool = True
    ip_range_denylist: list[str] = list(DEFAULT_IP_RANGE_DENYLIST)
    ip_range_allowlist: list[str] = []
    trusted_key_servers: list[str] = []

    @field_validator("ip_range_denylist", "ip_range_allowlist")
    @classmethod
    def _are_networks(cls, ranges: list[str]) -> list[str]:
        for text in ranges:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is not an IP range such as 10.0.0.0/8") from error
        return ranges

    @field_validator("trusted_key_servers")
    @classmethod
    def _are_server_names(cls, names: list[str]) -> list[str]:
        for name in names:
            _check_server_name(name)
        return names


class TcpReplicationConfig(_Section):
    """Where readers of the replication streams connect."""

    bind: Bind = "127.0.0.1"
    port: Port = 9092


class RedisConfig(_Section):
    """The Redis server over which Synapse's workers replicate."""

    url: Annotated[str, Field(repr=False)]

    @field_validator("url")
    @classmethod
    def _is_redis(cls, url: str) -> str:
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        return url


class ReplicationConfig(_Section):
    """The replication streams: either transport is turned off with null."""

    tcp: TcpReplicationConfig | None = TcpReplicationConfig()
    redis: RedisConfig | None = None


class AdminConfig(_Section):
    """The admin HTTP listener; the bearer token is created at `token_path` if it is missing."""

    bind: Bind = "127.0.0.1"
    port: Port = 9093
    token_path: ConfigPath = Path("admin.token")


class SparkConfig(_Section):
    """Which Spark master large rooms are computed on, and from how many events on.

    Off unless the section is there: on the threads of one machine Spark is slower than the worker's
    own processes at every size that was measured (docs/scaling.md).

    `settings`: Spark's own settings by their own names, such as `spark.executor.memory`.
    """

    master: Annotated[str, Field(min_length=1)] = "local[*]"
    min_events: Annotated[int, Field(ge=1)] = 50_000
    settings: dict[Annotated[str, Field(pattern=r"^spark\.")], str | int | float | bool] = {}

    @property
    def spark_settings(self) -> dict[str, str]:
        """`settings` as Spark takes them."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.settings.items()
        }


class ResyncConfig(_Section):
    """How much is done at once, and how long a room waits after a failure."""

    concurrent_rooms: Annotated[int, Field(ge=1, le=1000)] = 4
    backoff_min_seconds: Annotated[float, Field(gt=0)] = 5.0
    backoff_max_seconds: Annotated[float, Field(gt=0)] = 3600.0
    lease_ttl_seconds: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _backoff_is_a_range(self) -> ResyncConfig:
        if self.backoff_max_seconds < self.backoff_min_seconds:
            raise ValueError("backoff_max_seconds must not be below backoff_min_seconds")
        return self


class VerificationConfig(_Section):
    """How many processes check hashes and signatures; 0: one for each core."""

    processes: Annotated[int, Field(ge=0, le=1024)] = 0

    @property
    def process_count(self) -> int:
        """The number of processes to start, at least 1."""
        return self.processes or len(os.sched_getaffinity(0))


class LogConfig(_Section):
    """How the log is written, always to standard error."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Section):
    """Everything an operator can set. All paths are absolute once `load_config` returned it."""

    server_name: str
    signing_key_path: ConfigPath = Path("signing.key")
    instance_name: Annotated[str, Field(min_length=1, max_length=255)] = "resync1"
    database: Annotated[str, Field(repr=False)] = "sqlite:///resync.db"
    federation: FederationConfig = FederationConfig()
    replication: ReplicationConfig = ReplicationConfig()
    admin: AdminConfig | None = AdminConfig()
    spark: SparkConfig | None = None
    resync: ResyncConfig = ResyncConfig()
    verification: VerificationConfig = VerificationConfig()
    log: LogConfig = LogConfig()

    @field_validator("server_name")
    @classmethod
    def _is_a_server_name(cls, name: str) -> str:
        _check_server_name(name)
        return name

    @field_validator("instance_name")
    @classmethod
    def _fits_the_replication_protocol(cls, name: str) -> str:
        # The protocol separates its fields with spaces and its commands with newlines.
        if any(character.isspace() or not character.isprintable() for character in name):
            raise ValueError("must not have spaces or control characters in it")
        return name

    @field_validator("database")
    @classmethod
    def _is_a_database_we_know(cls, text: str) -> str:
        try:
            url = make_url(text)
        except (ArgumentError, ValueError) as error:
            # The text may hold a password: it is not repeated in the message.
            raise ValueError(f"must be {_DATABASE_FORMS}") from error
        if url.drivername not in ("sqlite", "postgresql", "postgresql+psycopg"):
            raise ValueError(f"{url.drivername!r} is not supported: must be {_DATABASE_FORMS}")
        if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
            raise ValueError("SQLite needs a file: sqlite:///resync.db")
        return text


_DATABASE_FORMS = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"


def _check_server_name(name: str) -> None:
    try:
        check_server_name(name)
    except InvalidIdentifier as error:
        raise ValueError(str(error)) from error


def load_config(path: Path | None, environment: Mapping[str, str]) -> Config:
    """Read the file (None: only the environment), apply the environment over it, and check it all.

    Relative paths, and a relative SQLite file, are taken from the directory of the file, or from
    the current one where there is none. Raises `ConfigError`.
    """
    source = str(path) if path is not None else "config"
    try:
        from_file = read_yaml(path) if path is not None else {}
    except ValueError as error:
        raise ConfigError(source, [str(error)]) from error
    from_environment, names, problems = read_environment(Config, environment)
    try:
        config = Config.model_validate(merge(Config, from_file, from_environment))
    except ValidationError as error:
        problems += [_describe(one, names) for one in error.errors(include_url=False)]
        raise ConfigError(source, problems) from error
    if problems:
        raise ConfigError(source, problems)
    directory = path.parent if path is not None else Path()
    return _resolve_paths(config, directory.absolute())


def _describe(error: Any, names: Mapping[tuple[str, ...], str]) -> str:
    """One line on one problem: where it is, what is wrong with it, what was meant perhaps."""
    location = tuple(str(part) for part in error["loc"])
    where, kind, message = ".".join(location), error["type"], error["msg"]
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(location)}"
    if kind == "missing":
        return f"{where}: required, but not set"
    if kind == "value_error":
        problem = message.removeprefix("Value error, ")
    else:
        expected = _EXPECTED.get(kind, message.removeprefix("Input should be "))
        problem = f"must be {expected}, not {_kind_and_value(error['input'])}"
    variable = names.get(location)
    return f"{where}: {problem}" + (f" (from {variable})" if variable else "")


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "list_type": "a list",
    "model_type": "a section with keys of its own",
}


def _kind_and_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a section"
    return f"the text {value!r}" if isinstance(value, str) else str(value).lower()


def _suggestion(location: tuple[str, ...]) -> str:
    nearest = nearest_key(Config, location)
    return f"; did you mean {'.'.join(nearest)}?" if nearest else ""


def _resolve_paths(config: Config, directory: Path) -> Config:
    listen = config.federation.listen
    if listen is not None and listen.tls_certificate_path and listen.tls_private_key_path:
        listen = listen.model_copy(
            update={
                "tls_certificate_path": directory / listen.tls_certificate_path,
                "tls_private_key_path": directory / listen.tls_private_key_path,
            }
        )
    admin = config.admin
    if admin is not None:
        admin = admin.model_copy(update={"token_path": directory / admin.token_path})
    return config.model_copy(
        update={
            "signing_key_path": directory / config.signing_key_path,
            "database": _resolve_database(config.database, directory),
            "federation": config.federation.model_copy(update={"listen": listen}),
            "admin": admin,
        }
    )


def _resolve_database(text: str, directory: Path) -> str:
    url = make_url(text)
    if url.drivername != "sqlite" or url.database is None:
        return text
    return url.set(database=str(directory / url.database)).render_as_string(hide_password=False)


def settings(config: Config) -> Iterator[tuple[str, Any]]:
    """Every setting with its value, as (dotted key, value), for documentation and tests."""

    def walk(prefix: str, section: BaseModel) -> Iterator[tuple[str, Any]]:
        for name in type(section).model_fields:
            value = getattr(section, name)
            if isinstance(value, BaseModel):
                yield from walk(f"{prefix}{name}.", value)
            else:
                yield f"{prefix}{name}", value

    yield from walk("", config)
