"""A YAML file of keys, with the line of each: what is refused is named by its place.

Source: YAML 1.1 as PyYAML's `SafeLoader` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from keylane.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file that was read whole."""

    path: Path
    values: dict[str, Any]
    root: yaml.Node | None
    """None: the file has no keys."""

    def place_of(self, keys: Sequence[int | str]) -> str:
        """Return `keylane.yaml:3` for the deepest of these keys that the file has."""
        line, node = None, self.root
        for key in keys:
            found = _entry_of(node, key)
            if found is None:
                break
            line, node = found
        return str(self.path) if line is None else f"{self.path}:{line}"


def read_yaml_file(path: Path) -> YamlFile:
    """Read a mapping of keys. Raises: ConfigInvalid, one line that names the file once."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{path}: not a text in UTF-8") from None
    root, values = parse_yaml(text, str(path))
    if values is not None and not isinstance(values, dict):
        raise ConfigInvalid(f"{path}: expected a mapping of keys to values, such as `listen: ...`")
    return YamlFile(path, values or {}, root)


def parse_yaml(text: str, place: str) -> tuple[yaml.Node | None, Any]:
    """Return the nodes and the values of a text. Raises: ConfigInvalid, one line with the place."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            return root, None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
        raise ConfigInvalid(
            f"{place}{line}: not valid YAML: {error.problem or error.context}"
        ) from None
    except yaml.reader.ReaderError as error:
        raise ConfigInvalid(
            f"{place}: not valid YAML: a character that it does not allow, at {error.position}"
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # a date such as 2026-13-40 is a ValueError
        raise ConfigInvalid(f"{place}: not valid YAML: {' '.join(str(error).split())}") from None


def _entry_of(node: yaml.Node | None, key: int | str) -> tuple[int, yaml.Node] | None:
    """Return the line and the value of an entry; an index counts the keys of a mapping, too."""
    if isinstance(node, yaml.SequenceNode):
        if isinstance(key, int) and key < len(node.value):
            item: yaml.Node = node.value[key]
            return item.start_mark.line + 1, item
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    for index, (name, value) in enumerate(node.value):
        if key in {index, name.value}:
            return name.start_mark.line + 1, value
    return None
