"""The metrics of ``vramtop export``: name, type, labels and meaning, and the rules and the dashboard that go with them.

``docs/reference/metrics.md`` has the same table.

Names follow https://prometheus.io/docs/practices/naming: base units, ``_total`` for counters, ``_info`` for facts.
No label is called ``job``: Prometheus gives that name to the scrape job and would rename ours to ``exported_job``.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Literal, get_args

import msgspec

from vramtop.estimator.common.errors import Verdict

from ..board.comparison import Status
from ..board.run_phases import RunPhase

MetricType = Literal["gauge", "counter", "stateset", "info"]
_UNITS = ("bytes_per_second", "bytes", "seconds", "celsius", "watts", "ratio")


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    family: str
    """Name of the family: without ``_total`` and ``_info``."""
    type: MetricType
    labels: tuple[str, ...]
    """Labels of its samples, besides the state of a stateset."""
    help: str
    states: tuple[str, ...] = ()
    """All states of a stateset; its samples have the family's name as one more label, with the state."""

    @property
    def name(self) -> str:
        """Name of its samples."""
        return self.family + {"counter": "_total", "info": "_info"}.get(self.type, "")

    @property
    def unit(self) -> str:
        """Unit by its name; empty: it has none."""
        return next((unit for unit in _UNITS if self.family.endswith(f"_{unit}")), "")

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Labels of its samples."""
        return (*self.labels, self.family) if self.type == "stateset" else self.labels


TABLE: list[Metric] = []
"""All metrics, in the order in which they are served."""


def _metric(type_: MetricType, name: str, labels: tuple[str, ...], text: str, states: tuple[str, ...] = ()) -> Metric:
    metric = Metric(family=f"vramtop_{name}", type=type_, labels=labels, help=text, states=states)
    TABLE.append(metric)
    return metric


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return _metric("gauge", name, labels, text)


_NONE: tuple[str, ...] = ()
_GPU = ("uuid", "index")
_MIG = ("uuid", "index", "mig")
_PROCESS = ("uuid", "index", "mig", "job_name", "user", "pid")
_PENDING = ("job_name",)

BUILD = _metric("info", "build", ("version",), "Version of vramtop.")
HOST = _metric("info", "host", ("host", "driver_version", "cuda_version"), "Host name and versions of the driver.")
SAMPLER_UP = _gauge(
    "sampler_up", _NONE, "1 if the last reading is recent; 0 without a driver, or if there are no readings."
)
LAST_READING = _gauge("sampler_last_reading_timestamp_seconds", _NONE, "Unix time of the last reading.")
READING_AGE = _gauge("sampler_reading_age_seconds", _NONE, "Age of the last reading when the metrics were written.")
INTERVAL = _gauge("sampler_interval_seconds", _NONE, "Time between two readings (--interval).")
READINGS = _metric("counter", "sampler_readings", _NONE, "Readings since the exporter started.")
FAILURES = _metric("counter", "sampler_failures", _NONE, "Failed readings since the exporter started.")
HOST_FAULT = _gauge("host_fault", ("reason",), "1 for each fault of the machine as a whole, such as NO_DRIVER.")
ATTACHED = _gauge("attached_runs", _NONE, "Training runs that are compared with a budget.")
UNREAD = _gauge("attach_unread_runs", _NONE, "Runs found on the GPUs that have not been read yet.")

GPU = _metric("info", "gpu", ("uuid", "index", "name"), "The GPU's name.")
GPU_READING = _gauge("gpu_last_reading_timestamp_seconds", _GPU, "Unix time at which the GPU's memory was last read.")
GPU_FAULT = _gauge(
    "gpu_fault",
    ("uuid", "index", "field", "reason"),
    "1 for each figure that the driver does not give, with its error code; field is empty for the GPU as a whole.",
)
GPU_CLOSED = _gauge(
    "gpu_closed",
    ("uuid", "index", "reason"),
    "1 for a GPU on which no program can be started, whatever is free: its compute mode, MIG mode without a device.",
)
GPU_TOTAL = _gauge("gpu_memory_total_bytes", _GPU, "Memory of the GPU.")
GPU_USED = _gauge("gpu_memory_used_bytes", _GPU, "Memory in use, without what the driver reserves if it says that.")
GPU_FREE = _gauge("gpu_memory_free_bytes", _GPU, "Memory that a new job can have, by the driver's own figure.")
GPU_RESERVED = _gauge("gpu_memory_reserved_bytes", _GPU, "Memory reserved by driver and firmware.")
GPU_UNATTRIBUTED = _gauge("gpu_memory_unattributed_bytes", _GPU, "Memory in use that belongs to no visible process.")
GPU_COMMITTED = _gauge(
    "gpu_memory_committed_bytes", _GPU, "Free memory that running jobs will yet allocate by their budgets, or reserved."
)
GPU_ANOMALOUS = _gauge(
    "gpu_memory_anomalous_bytes",
    ("uuid", "index", "kind"),
    "Memory held by what should not be there: helpers, strays, forgotten processes, two ranks on one GPU.",
)
GPU_USER_USED = _gauge("gpu_user_memory_used_bytes", ("uuid", "index", "user"), "Memory of all processes of a user.")
GPU_PROCESSES = _gauge("gpu_user_processes", ("uuid", "index", "user"), "Processes of a user on the GPU.")
GPU_UTILISATION = _gauge("gpu_utilization_ratio", _GPU, "Share of time in which a program ran on the GPU, 0 to 1.")
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", _GPU, "Temperature of the GPU.")
GPU_POWER = _gauge("gpu_power_watts", _GPU, "Power that the GPU draws.")
MIG_TOTAL = _gauge("mig_memory_total_bytes", _MIG, "Memory of a MIG device; uuid is that of the whole GPU.")
MIG_USED = _gauge("mig_memory_used_bytes", _MIG, "Memory of a MIG device in use.")
MIG_FREE = _gauge("mig_memory_free_bytes", _MIG, "Memory of a MIG device that a new job can have.")
MIG_COMMITTED = _gauge("mig_memory_committed_bytes", _MIG, "Free memory of a MIG device that jobs will yet allocate.")
MIG_UNATTRIBUTED = _gauge("mig_memory_unattributed_bytes", _MIG, "Memory of a MIG device of no visible process.")

_RUN = ("run", "rank", "world_size", "master")
PROCESS_RUN = _metric(
    "info",
    "process_run",
    (*_PROCESS, *_RUN),
    "Its place in a run, which may span hosts; run is the pid of the run's first rank on this host.",
)
PROCESS_START = _gauge("process_start_time_seconds", _PROCESS, "Unix time at which the process of a known job started.")
PROCESS_USED = _gauge("process_memory_used_bytes", _PROCESS, "Memory of a process of a known job on one GPU.")
PROCESS_PEAK = _gauge("process_memory_peak_bytes", _PROCESS, "The most that it was seen to hold.")
PROCESS_HAS_BUDGET = _gauge("process_has_budget", _PROCESS, "1 if its job has a budget; 0 if it cannot be estimated.")
PROCESS_BUDGET = _gauge("process_budget_bytes", _PROCESS, "Its predicted memory in the steady state.")
PROCESS_LOW = _gauge("process_budget_low_bytes", _PROCESS, "Lower bound of its predicted memory.")
PROCESS_HIGH = _gauge("process_budget_high_bytes", _PROCESS, "Upper bound of its predicted memory.")
PROCESS_COMPONENT = _gauge(
    "process_budget_component_bytes",
    (*_PROCESS, "component"),
    "Its predicted memory at the peak by component; slack is what the allocator keeps beyond the others.",
)
PROCESS_DIVERGENCE = _gauge(
    "process_divergence_bytes", _PROCESS, "Observed less predicted memory; absent while settings are guessed."
)
PROCESS_STATUS = _metric(
    "stateset",
    "process_status",
    _PROCESS,
    "How it compares with its budget; one that has ended is ended or out_of_memory for a while.",
    get_args(Status),
)
PROCESS_PHASE = _metric("stateset", "process_phase", _PROCESS, "Phase of the run.", get_args(RunPhase))
PROCESS_GROWTH = _gauge(
    "process_memory_growth_bytes_per_second", _PROCESS, "Growth of a process that should be steady; absent otherwise."
)
PROCESS_FULL = _gauge(
    "process_memory_full_seconds", _PROCESS, "Time until this growth has filled the GPU; absent without growth."
)
TORCH_ALLOCATED = _gauge("process_torch_allocated_bytes", _PROCESS, "torch.cuda.memory_allocated, from the probe.")
TORCH_RESERVED = _gauge("process_torch_reserved_bytes", _PROCESS, "torch.cuda.memory_reserved, from the probe.")
STEP_SECONDS = _gauge("process_step_seconds", _PROCESS, "Duration of the last training step, from the probe.")
STEPS = _metric("counter", "process_steps", _PROCESS, "Training steps completed, from the probe.")

PENDING_VERDICT = _metric(
    "stateset", "pending_verdict", _PENDING, "Whether a pending job (--job) fits now.", get_args(Verdict)
)
PENDING_BUDGET = _gauge("pending_budget_bytes", _PENDING, "Predicted peak of its rank with the highest peak.")
PENDING_MARGIN = _gauge(
    "pending_margin_bytes", _PENDING, "Memory to spare on its worst GPU; negative if it does not fit."
)


def rules_text() -> str:
    """Return the alerting rules for Prometheus, YAML."""
    return (files(__package__) / "vramtop_rules.yml").read_text()


def dashboard_text() -> str:
    """Return the Grafana dashboard, JSON as its import takes it."""
    return (files(__package__) / "grafana_dashboard.json").read_text()
