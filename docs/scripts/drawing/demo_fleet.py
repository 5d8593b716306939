"""A cluster for the picture of the dashboard over many hosts: a run over two hosts with one rank over its budget."""

from make_demo import GPU, SFT, START

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetProcess, HostReading, RankFacts

from .demo_node import RUN


class ClusterSource:
    """Gives the same fleet at every reading."""

    def __init__(self) -> None:
        self._fleet = Fleet(START, _hosts())

    def read(self) -> Fleet:
        """Return the fleet."""
        return self._fleet

    def close(self) -> None:
        """Nothing is open."""


def _hosts() -> tuple[HostReading, ...]:
    sft, run = estimate(SFT).peak, estimate(RUN).peak

    def single(user: str, pid: int) -> FleetProcess:
        return FleetProcess(
            pid=pid, used_bytes=sft.device_bytes - GIB // 4, user=user, job="llama-8b-sft", status="on_budget",
            budget_bytes=sft.device_bytes, low_bytes=sft.low_bytes, high_bytes=sft.high_bytes,
        )  # fmt: skip

    def rank(number: int, used: int, status: str, sentence: str | None = None) -> FleetProcess:
        return FleetProcess(
            pid=50_112 + number % 2, used_bytes=used, user="ana", job="llama-70b-lora", status=status,
            sentence=sentence, budget_bytes=run.device_bytes, low_bytes=run.low_bytes, high_bytes=run.high_bytes,
            facts=RankFacts(rank=number, world_size=4, master="node01:29500"),
            steps=412, step_seconds=3.1, steps_at=START - 1,
        )  # fmt: skip

    on_budget = run.device_bytes - GIB // 2
    over = run.high_bytes + 6 * GIB
    server = FleetProcess(pid=8_801, used_bytes=71 * GIB, user="serve", kind="vLLM", note="server")
    return (
        _host("node01", rank(0, on_budget, "on_budget"), rank(1, on_budget, "on_budget")),
        _host("node02", rank(2, on_budget, "on_budget"), rank(3, over, "over", "6.0 GiB above its upper bound")),
        _host("node03", single("ben", 7_120), single("cho", 7_344)),
        _host("node04", server, None),
        _host("node05", None, None),
        _host(
            "node06", single("ben", 2_209), None, state="unreachable", reason="Connection refused", since=START - 180
        ),
    )


def _host(name: str, *processes: FleetProcess | None, **changes: object) -> HostReading:
    gpus = tuple(_gpu(index, process) for index, process in enumerate(processes))
    return HostReading(**{"host": name, "time": START, "since": START, "gpus": gpus, **changes})


def _gpu(index: int, process: FleetProcess | None) -> FleetGpu:
    used = (process.used_bytes or 0) if process else 0
    reserved = GPU.reserved_bytes or 0
    return FleetGpu(
        index=index,
        name="NVIDIA H100 80GB HBM3",
        total_bytes=GPU.total_bytes,
        reserved_bytes=reserved,
        used_bytes=used,
        free_bytes=GPU.total_bytes - reserved - used,
        committed_bytes=0,
        unattributed_bytes=0,
        processes=(process,) if process else (),
    )
