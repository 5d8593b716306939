"""The accuracy table: jobs with their measured memory, read from ``cases/*.toml`` and ``gpu/*.json``.

In a TOML file, the top level and ``[job]`` hold the settings, source, versions, GPU and mechanism that its rows share,
``[models]`` the model configs, and each ``[[case]]`` a row with its own settings and the measured bytes. ``figure`` is
the measured quantity: ``allocated`` or ``reserved`` (torch.cuda), ``device`` (NVML), or ``component``, a single
``part`` of the budget; with ``active``, what the source calls allocated are torch's active bytes. ``mechanism`` names
what the row tests, ``expects`` describes what later versions of software change, ``explained`` why the prediction is
off by more than 10 %; none adjusts a figure. ``calibrates = false`` takes a row out of the calibration of ranges, since
its job cannot say what was run.

``make gpu`` writes the JSON on a machine with a GPU; each job yields one row per measured figure.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from active_bytes import waiting_bytes
from suite_results import read_results

from vramtop.estimator.budget import Budget, Span
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping

Figure = Literal["allocated", "reserved", "device", "component"]
Part = Literal["context", "nccl", "logits", "states", "loading", "loading_reserved"]
FOLDER = Path(__file__).with_name("cases")
GPU = Path(__file__).with_name("gpu")
_OWN = "gpu/"
"""Before the names of files that were measured here."""


class _Measured(msgspec.Struct, kw_only=True):
    """What a row of a file and a row of the table have alike."""

    id: str
    figure: Figure
    measured_bytes: int
    confidence: Literal["high", "medium"]
    part: Part | None = None
    besides_bytes: int = 0
    """Bytes of other components that the measurement includes."""
    active: bool = False
    """What was measured are torch's active bytes, which include released blocks that another stream uses."""
    calibrates: bool = True
    """Ranges are calibrated with the row: False if its job cannot say what was run."""
    expects: str | None = None
    explained: str | None = None


class Case(_Measured, frozen=True, kw_only=True):
    """One row: a job and a measured quantity."""

    file: str
    job: Job
    card: str | None
    source: str
    versions: str
    mechanism: str
    """What the row tests, in words."""

    @property
    def repository(self) -> str:
        """The repository or publication that the figure comes from: rows of one share their errors."""
        return self.source.split()[0]

    @property
    def waiting_bytes(self) -> int:
        """What active bytes include beyond the allocated ones; 0 if the latter were measured."""
        return waiting_bytes(self.job) if self.active else 0

    def predicted_bytes(self, budget: Budget) -> int:
        """Return the budget's figure for the measured quantity."""
        match self.figure:
            case "allocated":
                return budget.peak.allocated_bytes + self.waiting_bytes
            case "reserved":
                return budget.peak.reserved_bytes
            case "device":
                return budget.peak.device_bytes
            case "component":
                return _part_bytes(budget, self.part) + self.besides_bytes

    def range_bytes(self, budget: Budget) -> Span | None:
        """Return the predicted range of the figure; None for a component, since budgets have no range for those."""
        match self.figure:
            case "allocated":
                return _moved(budget.peak.allocated_range, self.waiting_bytes)
            case "reserved":
                return budget.peak.reserved_range
            case "device":
                return budget.peak.device_range
            case "component":
                return None


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of a source that the table excludes, with the reason."""

    ids: list[str]
    reason: str


class _Row(_Measured, forbid_unknown_fields=True, kw_only=True):
    mechanism: str | None = None
    config: str | None = None
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    lora: dict[str, Any] | None = None
    parallel: dict[str, Any] = {}
    software: dict[str, str] = {}
    zero: dict[str, Any] = {}
    card: str | None = None
    source: str | None = None
    versions: str | None = None
    note: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    source: str
    case: list[_Row]
    versions: str = ""
    mechanism: str = ""
    card: str | None = None
    left_out: list[LeftOut] = []
    job: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}


def read_cases(folder: Path = FOLDER) -> tuple[Case, ...]:
    """Return all rows of all TOML files."""
    return tuple(case for path, file in _files(folder) for case in _cases(path.stem, file))


def read_measured(folder: Path = GPU) -> tuple[Case, ...]:
    """Return what ``make gpu`` has measured, a row for each figure that is known; each file is a source of its own."""
    return tuple(case for path in sorted(folder.glob("*.json")) for case in _rows_of_suite(path))


def read_left_out(folder: Path = FOLDER) -> tuple[LeftOut, ...]:
    """Return the excluded rows of all TOML files."""
    return tuple(entry for _, file in _files(folder) for entry in file.left_out)


def _files(folder: Path) -> Iterator[tuple[Path, _File]]:
    for path in sorted(folder.glob("*.toml")):
        yield path, msgspec.toml.decode(path.read_bytes(), type=_File)


def _cases(name: str, file: _File) -> Iterator[Case]:
    for row in file.case:
        card = row.card or file.card
        yield Case(
            **{each: getattr(row, each) for each in _Measured.__struct_fields__},
            file=name,
            job=_job(file, row, card),
            card=card,
            source=row.source or file.source,
            versions=row.versions or file.versions,
            mechanism=row.mechanism or file.mechanism,
        )


def _rows_of_suite(path: Path) -> Iterator[Case]:
    found = read_results(path)
    gpu = match_nvml_name(found.card) if found.card else None
    for row in found.rows:
        result = row.measured
        if result is None or result["device"] != "cuda" or result["measured"] is None or result["error"]:
            continue
        target = {"gpu": gpu.name} if gpu else {}
        job = job_from_mapping({**result["job"], "target": target}, where=row.name)
        step = result["measured"]
        device = step["process_bytes"] if step["process_bytes"] is not None else step["device_bytes"]
        figures: dict[Figure, int | None] = {
            "allocated": step["max_allocated_bytes"],
            "reserved": step["max_reserved_bytes"],
            "device": device,
        }
        for figure, size in figures.items():
            if size is not None:
                yield Case(
                    id=f"{path.stem}: {row.part}: {row.name}: {figure}",
                    file=f"{_OWN}{path.stem}",
                    job=job,
                    figure=figure,
                    measured_bytes=size,
                    card=found.card,
                    source=f"{_OWN}{path.stem} {row.name}",
                    versions=", ".join(f"{name} {version}" for name, version in result["versions"].items()),
                    confidence="high",
                    mechanism=f"measured here, {row.part}",
                )


def _job(file: _File, row: _Row, card: str | None) -> Job:
    tables: dict[str, Any] = {"name": row.id}
    row_tables: Mapping[str, dict[str, Any] | None] = {
        "model": row.model,
        "training": row.training,
        "parallel": row.parallel,
        "lora": row.lora,
        "software": row.software,
        "zero": row.zero,
    }
    for table, values in row_tables.items():
        merged = {**file.job.get(table, {}), **(values or {})}
        if merged or values is not None:
            tables[table] = merged
    if row.config:
        tables["model"] = {key: value for key, value in tables["model"].items() if key != "id"}
        tables["model"]["config"] = file.models[row.config]
    if card:
        tables["target"] = {"gpu": card}
    return job_from_mapping(tables, where=row.id)


def _moved(span: Span | None, by: int) -> Span | None:
    return None if span is None else Span(span.low_bytes + by, span.high_bytes + by)


def _part_bytes(budget: Budget, part: Part | None) -> int:
    loading, step = budget.phase("loading"), budget.phase("optimizer step")
    peak = budget.phase(budget.peak.phase)
    if loading is None or step is None or peak is None:
        raise ValueError("the budget has no training step to take a component from")
    match part:
        case "context":
            return loading.components.context
        case "nccl":
            return peak.outside_bytes - peak.components.context
        case "logits":
            return max(phase.components.logits for phase in budget.phases)
        case "states":
            parts = step.components
            return parts.weights + parts.gradients + parts.optimizer + parts.temporary
        case "loading":
            return loading.components.total_bytes
        case "loading_reserved":
            return loading.allocated_bytes
        case None:
            raise ValueError("figure = 'component' needs a part")
