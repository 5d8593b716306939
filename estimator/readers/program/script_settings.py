"""Settings in the source of a training script, which is parsed and never run."""

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...common import InputError, TooLargeError, read_file
from ..source import Setting, SettingsLayer
from ..trl import method_of_class
from .script_calls import LENGTH_ARGUMENTS, TRAINING_CONFIG, CallReader
from .script_values import ScriptEvaluator, calls_in_order

_MAX_BYTES = 3 * 2**16
"""A script of this size is read within a second, whatever it contains; transformers' modeling files are smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """Settings in a script's source, by the names of transformers' and accelerate's arguments."""

    written: SettingsLayer = field(default_factory=dict)
    """Arguments of the calls that configure the job."""
    hints: SettingsLayer = field(default_factory=dict)
    """Weaker: defaults of its options, batch size of a DataLoader, length of a tokenizer or constant, optimizer."""
    accelerate: SettingsLayer = field(default_factory=dict)
    """Arguments of ``Accelerator(...)``; sharding and mixed precision of the script's own training loop."""
    called: frozenset[str] = frozenset()
    """Last parts of the names that it calls."""
    loads_model: bool = False
    """True if it loads the model itself rather than let the trainer do it."""
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """Arguments whose values are known only when the script runs, each with a sentence."""

    @property
    def trl_method(self) -> str | None:
        """``sft``, ``dpo``, ... where the script uses one of TRL's trainers."""
        methods = (method_of_class(name) for name in sorted(self.called))
        return next((method.name for method in methods if method is not None), None)

    @property
    def uses_plain_arguments(self) -> bool:
        """True if its only configuration is transformers' own TrainingArguments, perhaps with a trainer of TRL."""
        configs = [name for name in self.called if TRAINING_CONFIG.fullmatch(name) and name != "ModelConfig"]
        return bool(configs) and all(name.endswith("TrainingArguments") for name in configs)

    @property
    def trains_with_trainer(self) -> bool:
        """True if it uses a Trainer, TrainingArguments or a class derived from them."""
        return any(TRAINING_CONFIG.fullmatch(name) or name.endswith("Trainer") for name in self.called)


def read_script(
    path: Path, *, options: Mapping[str, Setting], environ: Mapping[str, str], text: str | None = None
) -> ScriptSettings:
    """Return the settings in a script's source.

    Args:
        path: the script.
        options: flags on its command line.
        environ: its environment.
        text: its source, where that is not what the file holds: the cells of a notebook.

    Raises:
        InputError: it cannot be read, or is not Python that this interpreter can parse.
    """
    try:
        source = read_file(path, _MAX_BYTES) if text is None else text
        with warnings.catch_warnings():  # the script's own syntax warnings would go to the terminal
            warnings.simplefilter("ignore")
            tree = ast.parse(source, filename=str(path))
        return _read(tree, ScriptEvaluator(tree, script=path.name, options=options, environ=environ))
    except TooLargeError:
        raise InputError(f"{path}: too large to be a script") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: is not Python that can be read here: {error}") from None
    except (RecursionError, MemoryError):  # the parser raises MemoryError for deep nesting
        raise InputError(f"{path}: is not Python that can be read here: nested too deeply") from None


def _read(tree: ast.Module, evaluator: ScriptEvaluator) -> ScriptSettings:
    reader = CallReader(evaluator)
    called = set()
    for call in calls_in_order(tree):
        called.add(call.name)
        reader.read(call)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    has_own_loop = not any(name.endswith("Trainer") for name in called)
    defaults = {name: setting for name, setting in evaluator.defaults.items() if setting.value is not None}
    return ScriptSettings(
        written={**reader.models, **reader.written},
        hints={**evaluator.constants(*LENGTH_ARGUMENTS), **reader.hints, **defaults},
        accelerate={**(reader.own_loop if has_own_loop else {}), **reader.accelerate},
        loads_model=reader.loads_model,
        unresolved={name: sentence for name, sentence in reader.unresolved.items() if name not in reader.written},
        called=frozenset(
            called | {name for name in imported if method_of_class(name) or TRAINING_CONFIG.fullmatch(name)}
        ),
    )
