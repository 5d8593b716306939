"""YAML as plain data, with an end to it: PyYAML's safe loader follows whatever a few lines ask it for."""

from typing import Any

import yaml

_MOST_VALUES = 20_000
"""Read at some 60,000 a second; merge keys (``<<``) count each time, for two of them a line double with every line."""
_MOST_DEPTH = 64
_LONGEST_NUMBER = 4300
"""Digits, as Python's own limit has it; in base 60 PyYAML knows none."""


class BoundedLoader(yaml.SafeLoader):
    """Raises ``yaml.YAMLError`` where a text has more, or deeper, than settings do."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One value, and those in it."""
        self._add(1)
        if self._depth > _MOST_DEPTH:
            raise yaml.YAMLError(f"nested more than {_MOST_DEPTH} deep")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def flatten_mapping(self, node: Any) -> None:
        """Takes in what ``<<`` names: those tables are flat before they are copied, so that the count comes first."""
        super().flatten_mapping(node)
        self._add(len(node.value))

    def construct_scalar(self, node: Any) -> Any:
        """A word or a number."""
        value = super().construct_scalar(node)
        if node.tag != "tag:yaml.org,2002:str" and isinstance(value, str) and len(value) > _LONGEST_NUMBER:
            raise yaml.YAMLError(f"a number of {len(value):,} digits")
        return value

    def _add(self, count: int) -> None:
        self._values += count
        if self._values > _MOST_VALUES:
            raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values, its merge keys followed; no configuration has")
