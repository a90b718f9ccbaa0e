"""One line for what is wrong with a value of the configuration: its place, its key, the cure.

Source: pydantic, "Validation Errors" (the types of errors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel

from keylane.config.node import ProxyConfig

EXAMPLES: Final[Mapping[str, str]] = {
    "lanes": "{orders: 16}, or [{topic: orders, lanes: 16}]",
    "groups": "{billing: key-range}, or [{group: billing, assignor: key-range}]",
    "share_groups": "{billing: key}, or [{group: billing, order: key}]",
}
LIST_EXAMPLE: Final = "[a, b]"
VALUE_SHOWN_MAX: Final = 60
KEYS_PAGE: Final = "`keylane config` lists all keys"
LISTS: Final = frozenset({"tuple_type", "list_type"})
RULES: Final = frozenset({"model_type", "model_attributes_type", "dict_type"})
BOUNDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "greater_than_equal": ("ge", "", " or more"),
    "less_than_equal": ("le", "", " or less"),
    "greater_than": ("gt", "above ", ""),
    "less_than": ("lt", "below ", ""),
}
"""Name of the bound in the error, and the words around it."""
PLAIN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "{value} is no whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "{value} is no number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "{value} is neither true nor false"),
    "string_type": "{value} is no text",
    "string_too_short": "must not be empty",
    "literal_error": "{value} is not {expected}",
}
Place = Callable[[Sequence[int | str]], str | None]
"""Returns where a key was set: `keylane.yaml:3`, `KEYLANE_LANES`, `--lanes`; None: nowhere."""


def explain_fault(error: Mapping[str, Any], place_of: Place) -> str:
    """Return the line for one of pydantic's errors."""
    keys: tuple[int | str, ...] = tuple(error["loc"])
    text = _text(error, keys)
    if error["type"] == "missing":
        keys = keys[:-1]
    if not keys and error["type"] != "missing":  # the text names its keys itself
        named = text.partition(":")[0].partition(" ")[0]
        place = place_of((named,)) if named in ProxyConfig.model_fields else None
        return f"{place}: {text}" if place else text
    place, name = place_of(keys) if keys else None, ".".join(map(str, keys))
    if place == f"--{name}":
        return f"{place}: {text}"
    if place == "--set":
        return f"{place} {name}: {text}"
    return ": ".join(part for part in (place, name, text) if part)


def _text(error: Mapping[str, Any], keys: Sequence[int | str]) -> str:
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind == "missing":
        return _missing(keys)
    if kind == "extra_forbidden":
        return _unknown(keys)
    if kind in LISTS or kind in RULES:
        return f"expected {'a list' if kind in LISTS else 'a rule'}, such as {_example(keys)}"
    if kind in BOUNDS:
        name, before, after = BOUNDS[kind]
        bound = f"{before}{context[name]:g}{after}"
        return f"{_shown(error['input'])} is out of bounds, must be {bound}"
    if kind in PLAIN:
        return PLAIN[kind].format(value=_shown(error["input"]), **context)
    text: str = error["msg"]
    return text.removeprefix("Value error, ")


def _missing(keys: Sequence[int | str]) -> str:
    key = str(keys[-1])
    if len(keys) > 1:
        return f"{key} is missing, as in {_example(keys)}"
    return (
        f"{key} is missing: give --{key.replace('_', '-')}, the variable KEYLANE_{key.upper()}, or "
        f"the key {key} in the file of --config"
    )


def _unknown(keys: Sequence[int | str]) -> str:
    known = list(_model_of(keys[:-1]).model_fields)
    near = get_close_matches(str(keys[-1]), known, n=1)
    if near:
        return f"no such key; did you mean {near[0]}?"
    return (
        f"no such key; {KEYS_PAGE}" if len(keys) == 1 else f"no key of a rule: {', '.join(known)}"
    )


def _model_of(keys: Sequence[int | str]) -> type[BaseModel]:
    """Return the model whose keys stand at this place."""
    if not keys:
        return ProxyConfig
    annotation = ProxyConfig.model_fields[str(keys[0])].annotation
    rules = [part for part in get_args(annotation) if isinstance(part, type)]
    return rules[0] if rules and issubclass(rules[0], BaseModel) else ProxyConfig


def _example(keys: Sequence[int | str]) -> str:
    return EXAMPLES.get(str(keys[0]), LIST_EXAMPLE)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[: VALUE_SHOWN_MAX - 3]}..."
