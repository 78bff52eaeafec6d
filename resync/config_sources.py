"""Where settings come from: a YAML file and the environment. What they mean is `config.py`'s.

The models are walked only by their fields, so that every key that exists in the file exists in
the environment too, under the name `RESYNC_SECTION__KEY`.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

PREFIX = "RESYNC_"
# Variables of the test suite live beside the settings and are none of them.
_TEST_PREFIX = "RESYNC_TEST_"

KeyPath = tuple[str, ...]


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key given twice is an error, not silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the base class reports it
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ValueError(f"line {line}: the key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ValueError, in one line, for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError("is not a text file in UTF-8") from error
    try:
        value = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}is not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"is not valid YAML: {str(error).splitlines()[0]}") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("must be a mapping of keys to values")
    return value


def read_environment(
    model: type[BaseModel], environment: Mapping[str, str]
) -> tuple[dict[str, Any], dict[KeyPath, str], list[str]]:
    """The settings in the environment.

    Returns the nested values, the variable each setting came from, and one line for each
    variable that is not a setting or cannot be read.
    """
    known = {_variable(path): (path, field) for path, field in _fields(model)}
    values: dict[str, Any] = {}
    names: dict[KeyPath, str] = {}
    problems: list[str] = []
    # Shorter names first: a section as a whole is in place before a key of it is set.
    for name in sorted(environment, key=lambda name: (name.count("__"), name)):
        if not name.startswith(PREFIX) or name.startswith(_TEST_PREFIX):
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]}?" if close else ""
            problems.append(f"environment variable {name}: unknown key{hint}")
            continue
        path, field = known[name]
        try:
            value = _read_value(field, environment[name])
        except yaml.YAMLError:
            problems.append(f"environment variable {name}: cannot be read as YAML")
            continue
        _set(values, path, value)
        names[path] = name
    return values, names, problems


def merge(
    model: type[BaseModel], below: Mapping[str, Any], above: Mapping[str, Any]
) -> dict[str, Any]:
    """Both mappings in one, section by section; `above` wins.

    A section written without any keys ("replication:") is an empty one, unless null means
    that it is turned off.
    """
    result: dict[str, Any] = dict(below)
    for key, value in above.items():
        field = model.model_fields.get(key)
        section = _section_model(field) if field is not None else None
        old = result.get(key)
        if section is not None and isinstance(value, Mapping) and isinstance(old, Mapping | None):
            result[key] = merge(section, old or {}, value)
        else:
            result[key] = value
    for name, field in model.model_fields.items():
        section = _section_model(field)
        if section is None or name not in result:
            continue
        if result[name] is None and not _is_optional(field):
            result[name] = {}
        elif isinstance(result[name], dict) and name not in above:
            result[name] = merge(section, result[name], {})
    return result


def nearest_key(model: type[BaseModel], path: KeyPath) -> KeyPath | None:
    """The setting that was probably meant by a key that does not exist, if there is one."""
    keys = [known for known, _ in _fields(model)]
    siblings = {known[-1]: known for known in keys if known[:-1] == path[:-1]}
    close = difflib.get_close_matches(path[-1], siblings, n=1, cutoff=0.6)
    if close:
        return siblings[close[0]]
    elsewhere: dict[str, KeyPath] = {}
    for known in keys:
        elsewhere.setdefault(known[-1], known)
    close = difflib.get_close_matches(path[-1], elsewhere, n=1, cutoff=0.8)
    return elsewhere[close[0]] if close else None


def _fields(model: type[BaseModel], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every key there is, sections included, with its path from the top."""
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        yield path, field
        section = _section_model(field)
        if section is not None:
            yield from _fields(section, path)


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(path).upper()


def _alternatives(field: FieldInfo) -> tuple[Any, ...]:
    """The types of a field: those of the union, or the one it has."""
    if typing.get_origin(field.annotation) in (typing.Union, types.UnionType):
        return typing.get_args(field.annotation)
    return (field.annotation,)


def _section_model(field: FieldInfo) -> type[BaseModel] | None:
    for one in _alternatives(field):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _is_optional(field: FieldInfo) -> bool:
    return type(None) in _alternatives(field)


def _read_value(field: FieldInfo, text: str) -> Any:
    """The value of a variable: text stays text, everything else is read as YAML."""
    if field.annotation is str:
        return text
    if _is_optional(field) and text.strip().lower() in ("", "null"):
        return None
    plain = [typing.get_args(one)[0] if _is_annotated(one) else one for one in _alternatives(field)]
    if any(one is str or one is Path or typing.get_origin(one) is typing.Literal for one in plain):
        return text
    return yaml.safe_load(text)


def _is_annotated(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.Annotated


def _set(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for key in path[:-1]:
        child = values.get(key)
        if not isinstance(child, dict):
            child = {}
            values[key] = child
        values = child
    values[path[-1]] = value
