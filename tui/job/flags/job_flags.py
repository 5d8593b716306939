"""The flags of a job as the parser of a command takes them: its settings by key, and the names of other tools."""

import argparse
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from vramtop.estimator.job.field_help import is_switch
from vramtop.estimator.job.job_file.table_fields import job_keys

from .familiar import FAMILIAR_FLAGS, IGNORED_FLAGS, IGNORED_SWITCHES, FamiliarFlag

TRUST_KEY = "model.trust_remote_code"
"""The key whose flag is that of transformers' own scripts."""
_KEYS_WITHOUT_FLAG = ("name", "model.id", "model.config", "other_models", "target.gpu", "target.devices")
_TABLES_WITHOUT_FLAGS = ("software", "run", "unsure", "rollout", "saving", "zero", "program")
"""Tables that are rarely given outside of a job file; ``--set`` reaches them."""
_PREFIXED_TABLES = ("lora", "inference")
JOB_HELP = (
    "Job file (TOML), configuration of another tool (axolotl, LLaMA-Factory, torchtune, ...), model (built-in name, "
    "hub id in the local cache, folder with a config.json, module:callable), script (train.py, train.ipynb), or a "
    "launch line after --."
)


class FlagAction(argparse.Action):
    """Records the flag as it was typed, with its value; ``settings_of_flags`` makes settings of all of them.

    Args:
        key: the job key whose flag it is; None: none.
        familiar: the flag with other tools' names that it is; None: none.
        **settings: those of ``argparse.Action``.
    """

    def __init__(self, *, key: str | None = None, familiar: FamiliarFlag | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.key = key
        self.familiar = familiar
        named = key or (familiar.key if familiar else "")
        self.splits_job = named.startswith("parallel.")
        """It splits the job over GPUs."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: object, option: str | None = None) -> None:
        """Append to ``namespace.flags``."""
        text = values if isinstance(values, str) else ""
        namespace.flags = [*namespace.flags, (option or self.option_strings[0], text)]


@lru_cache(maxsize=1)
def job_flags() -> Mapping[str, str]:
    """Return the job key of each flag: ``--micro-batch`` sets ``training.micro_batch``.

    Flags of ``[lora]`` and ``[inference]`` begin with the table's name.
    """
    flags = {}
    for key in job_keys():
        table, _, name = key.partition(".")
        if key not in _KEYS_WITHOUT_FLAG and table not in _TABLES_WITHOUT_FLAGS:
            prefix = f"{table}-" if table in _PREFIXED_TABLES else ""
            flags[f"--{prefix}{name.replace('_', '-')}"] = key
    return flags


def flags_by_key() -> dict[str, str]:
    """Return the flag of each job key that has one."""
    return {key: flag for flag, key in job_flags().items()}


_WITHOUT_VALUE = {"training.activation_checkpointing": "full", "parallel.cpu_offload": "all"}
"""The value of a flag that stands alone, of keys that are not true or false."""


def value_alone(key: str) -> str | None:
    """Return the value of a key's flag without a value, such as ``--compile``; None: it needs one."""
    return "true" if is_switch(key) else _WITHOUT_VALUE.get(key)


_HEADINGS = {
    "model": "model",
    "training": "training step",
    "lora": "LoRA and QLoRA",
    "parallel": "several GPUs",
    "inference": "inference (--mode inference)",
}
"""Heading of each table's flags in the help, in their order there."""
_USUAL_HEADING = "common settings"
_FAMILIAR_HEADING = "other tools' names for these settings (with - or _)"
_USUAL = (
    *("--batch-size", "--seq-len", "--lora", "--qlora", "--bf16", "--fp16", "--gradient-checkpointing", "--optim"),
    *("--flash-attention", "--fsdp", "--ddp", "--zero"),
)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the JOB argument, a flag for each setting of a job, its other names, and ``--set``."""
    parser.add_argument("job", nargs="?", metavar="JOB", help=JOB_HELP)
    parser.set_defaults(flags=[], model_flag=None)
    text = "Set any key of the job file, such as software.torch=2.4 or rollout.engine=vllm."
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    usual = [flag for flag in FAMILIAR_FLAGS if flag.names[0] in _USUAL]
    _add_familiar_flags(parser.add_argument_group(_USUAL_HEADING), usual)
    groups = {table: _rare(parser.add_argument_group(heading)) for table, heading in _HEADINGS.items()}
    text = "The model, in place of JOB or of a job file's model."
    names = ("--model", "-m", "--model-name-or-path", "--model-name", "--model-id", "--base-model")
    groups["model"].add_argument(*names, dest="model_flag", metavar="MODEL", help=text)
    for flag, key in job_flags().items():
        nargs = None if value_alone(key) is None else "?"
        group = groups[key.partition(".")[0]]
        group.add_argument(flag, action=FlagAction, key=key, nargs=nargs, dest=argparse.SUPPRESS)
    others = [flag for flag in FAMILIAR_FLAGS if flag not in usual]
    _add_familiar_flags(_rare(parser.add_argument_group(_FAMILIAR_HEADING)), others)
    for name in IGNORED_FLAGS:
        nargs = "?" if name in IGNORED_SWITCHES else None
        parser.add_argument(name, action=FlagAction, nargs=nargs, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _rare(group: Any) -> Any:
    """Return the group, left out of the short help."""
    group.is_rare = True
    return group


def _add_familiar_flags(group: Any, flags: Sequence[FamiliarFlag]) -> None:
    for flag in flags:
        nargs = 0 if not flag.placeholder else "?" if flag.value_optional else None
        group.add_argument(
            *flag.names,
            action=FlagAction,
            familiar=flag,
            nargs=nargs,
            metavar=flag.placeholder or None,
            dest=argparse.SUPPRESS,
            help=flag.meaning,
        )
