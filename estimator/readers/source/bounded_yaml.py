"""A YAML loader with limits: PyYAML's safe loader expands whatever a few lines ask for."""

from typing import Any

import yaml

_MAX_VALUES = 20_000
"""PyYAML loads some 60,000 a second. Merge keys (``<<``) count each time: a line with two of them doubles the table."""
_MAX_DEPTH = 64
_MAX_DIGITS = 4300
"""Python's own limit for decimal numbers; PyYAML has none for numbers in base 60."""


class BoundedLoader(yaml.SafeLoader):
    """A safe loader that raises ``yaml.YAMLError`` when a text has more, or deeper, values than settings do."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one value with everything inside it, counting values and depth."""
        self._add(1)
        if self._depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"nested more than {_MAX_DEPTH} deep")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def flatten_mapping(self, node: Any) -> None:
        """Copy in the tables that ``<<`` names. They are already flat, so the count comes before the copy."""
        super().flatten_mapping(node)
        self._add(len(node.value))

    def construct_scalar(self, node: Any) -> Any:
        """Construct a word, or a number of at most ``_MAX_DIGITS`` digits."""
        value = super().construct_scalar(node)
        if node.tag != "tag:yaml.org,2002:str" and isinstance(value, str) and len(value) > _MAX_DIGITS:
            raise yaml.YAMLError(f"a number of {len(value):,} digits")
        return value

    def _add(self, count: int) -> None:
        self._values += count
        if self._values > _MAX_VALUES:
            raise yaml.YAMLError(f"more than {_MAX_VALUES:,} values after expanding merge keys; no configuration has")
