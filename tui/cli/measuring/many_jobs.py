"""The jobs of one command line: one, or those of a file with a job in JSON on each line."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from vramtop.estimator.common import InputError, read_file
from vramtop.estimator.job import Job, job_from_mapping, parse_assignment, with_changes

from ...job import load_from_options

SUFFIX = ".jsonl"


def is_list(options: argparse.Namespace) -> bool:
    """Return True if JOB is a file of several jobs."""
    return bool(options.job) and Path(options.job).suffix == SUFFIX


def loaded_jobs(options: argparse.Namespace, launch: Sequence[str] | None) -> Iterator[tuple[Job, tuple[str, ...]]]:
    """Yield each job with its notes.

    Raises:
        InputError: a job cannot be read.
    """
    if not is_list(options):
        loaded = load_from_options(options, launch)
        yield loaded.job, loaded.notes
        return
    if options.flags or launch is not None:
        raise InputError(f"{options.job} has jobs of its own; of other settings only --set is applied to them")
    changes = dict(parse_assignment(text) for text in options.set)
    lines = _lines(Path(options.job))
    if not any(line.strip() for line in lines):
        raise InputError(f"{options.job}: it is empty; each line is a job, the tables of a job file in JSON")
    for number, line in enumerate(lines, 1):
        where = f"{options.job}, line {number}"
        if not line.strip():
            continue
        try:
            tables = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise InputError(f"{where}: not JSON: {error}") from None
        if not isinstance(tables, dict):
            raise InputError(f"{where}: a job is an object, with the tables of a job file")
        yield with_changes(job_from_mapping(tables, where=where), changes, where="the command line"), ()


def _lines(path: Path) -> list[bytes]:
    try:
        return read_file(path).splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
