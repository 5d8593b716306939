"""The command-line flags that describe a job: one for each key of the job file."""

import argparse

from vramtop.estimator.job import job_keys

TRUST_KEY = "model.trust_remote_code"
"""The only key whose flag takes no value, as in transformers' own scripts."""
_KEYS_WITHOUT_FLAG = ("name", "model.id", "model.config", "other_models", "target.gpu")
_TABLES_WITHOUT_FLAGS = ("software", "run", "unsure", "rollout")
"""Tables that are rarely given outside of a job file; ``--set`` reaches them."""
_PREFIXED_TABLES = ("lora", "inference")


def job_flags() -> dict[str, str]:
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


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the JOB argument, a flag for each setting of a job, and ``--set``."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="job file (TOML), configuration of another tool (axolotl, LLaMA-Factory, torchtune, ...), model (built-in "
        "name, hub id in the local cache, folder with config.json, module:callable), or a launch line after --",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set any key of the job file")
    group = parser.add_argument_group("settings of the job (as in a job file)")
    for flag, key in job_flags().items():
        if key == TRUST_KEY:
            group.add_argument(
                flag, dest=key, action="store_const", const="true", help="run code in the model's folder"
            )
        else:
            group.add_argument(flag, dest=key, metavar="VALUE", help=key, default=None)
