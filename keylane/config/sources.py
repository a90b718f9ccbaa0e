"""Sources of a node's configuration: a YAML file, the environment, the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import ValidationError

from keylane.config.faults import explain_fault
from keylane.config.node import ProxyConfig
from keylane.config.origins import ORIGINS_VARIABLE, LoadedConfig, Origin, read_variable
from keylane.config.rule_forms import spread_rules
from keylane.config.source_names import SAME
from keylane.config.yaml_file import YamlFile, parse_yaml, read_yaml_file
from keylane.errors import ConfigInvalid

ENVIRONMENT_PREFIX: Final = "KEYLANE_"
SET: Final = "--set"
"""Flag for keys without one of their own."""


def load_config(
    *,
    path: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
    needed: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """Build from file < environment < flags. Raises: ConfigInvalid, naming the key.

    places: the flag of a key, where that is not the key's own name, such as `--set`.
    needed: values that count where a key is set nowhere; their origin is the default.
    """
    file = None if path is None else read_yaml_file(path)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    if file is not None:
        values = _use_keys(file.values, str(path))
        origins = dict.fromkeys(values, Origin("file", str(path)))
        before = read_variable(environment.get(ORIGINS_VARIABLE))
        origins |= {key: origin for key, origin in before.items() if key in values}
    for key in ProxyConfig.model_fields:
        variable = ENVIRONMENT_PREFIX + key.upper()
        text = environment.get(variable)
        if text is not None:
            values[key], origins[key] = text, Origin("environment", variable)
    given = _use_keys({key: value for key, value in flags.items() if value is not None}, SET)
    for key, value in given.items():
        place = (places or {}).get(key) or f"--{key.replace('_', '-')}"
        values[key], origins[key] = value, Origin("flag", place)
    for key, value in values.items():
        field = ProxyConfig.model_fields.get(key)
        if field is None or get_origin(field.annotation) is not tuple:
            continue
        place = origins[key].place or key
        if isinstance(value, str) and origins[key].source != "file":  # a variable, or --set
            value = _read_list(value, place)
        values[key] = spread_rules(key, value)
    try:
        config = ProxyConfig.model_validate({**(needed or {}), **values})
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults = [explain_fault(each, partial(_place_of, origins, file)) for each in found]
        raise ConfigInvalid("; ".join(faults)) from None
    return LoadedConfig(config, origins)


def _place_of(
    origins: Mapping[str, Origin], file: YamlFile | None, keys: Sequence[int | str]
) -> str | None:
    """Return the place of a key: with its line, where a file has it."""
    origin = origins.get(str(keys[0]))
    if origin is None:
        return None
    if file is not None and origin == Origin("file", str(file.path)):
        name = next((name for name in file.values if SAME.get(name, name) == keys[0]), keys[0])
        return file.place_of([name, *keys[1:]])
    return origin.place


def _use_keys(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Put keys in the place of their other names. Raises: ConfigInvalid, for a key set twice."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = SAME.get(name, name)
        if key in found:
            raise ConfigInvalid(f"{place}: {name} is another name of {key}, which is set as well")
        found[key] = value
    return found


def _read_list(text: str, place: str) -> Any:
    """Read a list as YAML writes it, or as the command line does. Raises: ConfigInvalid."""
    _, value = parse_yaml(text, place)
    return value
