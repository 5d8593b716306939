"""The table of optimizers, by the job file's names. A new optimizer is one row of a module of rows."""

from . import further_rows, matrix_rows, optimizer, quantized_rows, torch_rows

_MODULES = (torch_rows, quantized_rows, optimizer, matrix_rows, further_rows)
OPTIMIZERS = {row.name: row for module in _MODULES for row in module.ROWS}
"""By the job file's ``training.optimizer``."""
UNKNOWN = "unknown"
"""The row of optimizers that are not known: a wide range rather than the figures of another."""


def option_defaults() -> dict[str, object]:
    """Return every option of ``training.optimizer_options`` with a value of its type."""
    return {name: value for row in OPTIMIZERS.values() for name, value in row.options.items()}
