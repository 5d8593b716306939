"""Fixtures of the whole test suite: factories of budgets, snapshots and sources with figures that are easy to check."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pynvml
import pytest
from execnet import XSpec
from fake_driver import FakeDriver
from hypothesis import HealthCheck, settings
from preloaded_python import COLLECTED, preloaded_python

from vramtop.estimator.budget import Budget, Components, ModelFacts, Peak, Phase
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.trace import isolated_run, worker_pool
from vramtop.estimator.trace.worker_pool import POOL, keep_idle_workers
from vramtop.estimator.trace.worker_process import Worker
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, MigReading, Snapshot, Source


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--slow-sample N``: of the slow tests run one in N, always the same ones."""
    parser.addoption("--slow-sample", type=int, default=1, metavar="N", help="of the slow tests run one in N")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that are not in the sample; those of what is published are in every sample."""
    step = config.getoption("--slow-sample")
    may_be_left_out = [
        each for each in items if each.get_closest_marker("slow") and not each.get_closest_marker("published")
    ]
    left_out = [item for item in may_be_left_out if zlib.crc32(item.nodeid.encode()) % step]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[XSpec]) -> None:
    """Start the workers in a Python that has imported all modules of the tests, which takes each some 20 seconds."""
    folder = Path(tempfile.mkdtemp(prefix="vramtop-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(folder))
    os.environ["VRAMTOP_TESTS_OWNER"] = str(os.getpid())
    python = preloaded_python(folder, COLLECTED, *map(str, config.invocation_params.args), owner=os.getpid())
    specs[:] = [XSpec(f"{spec}//python={python}") for spec in specs]


def pytest_configure() -> None:
    """Look for no garbage while the tests are collected, which makes millions of objects and none of it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let later collections of garbage leave out what is there now: it takes seconds to go through."""
    gc.freeze()
    gc.enable()


settings.register_profile(
    "any-machine",
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any-machine")

# The programs that tests name "python" and "torchrun" are those of this environment, as where it is activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs so, and the programs that the tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup does so
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def data_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder for each test, which is not there yet."""
    folder = tmp_path_factory.mktemp("own")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_data_folder(data_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files that vramtop stores during a test out of the user's folders, and the user's settings out of it."""
    folder = next(data_folders)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.delenv("VRAMTOP_CONFIG", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _shared_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all estimates of a test run use one worker process, forked from a Python that has imported torch already."""

    class QuickWorker(Worker):
        def __init__(self, python: Path) -> None:
            is_own = str(python) == sys.executable and find_spec("torch") is not None
            super().__init__(Path(start_python_with_torch(tmp_path_factory)) if is_own else python)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_pool, "Worker", QuickWorker)
        keep_idle_workers(600)
        yield
        keep_idle_workers(0)
        POOL.close()


@pytest.fixture(scope="session")
def python_with_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a Python that has imported torch and transformers already, for tests that start many programs."""
    return start_python_with_torch(tmp_path_factory)


def start_python_with_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Start it, if no other worker of pytest-xdist has done so, and return its path."""
    folder = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    return preloaded_python(
        folder.parent if is_worker else folder,
        "torch",
        "torch._dynamo",
        "torch.distributed.launcher",
        *(f"worker.rehearsal.{name}" for name in ("moving", "notebook", "program", "ranks", "watched")),
        "--",
        "peft",
        "transformers.trainer",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama",
        owner=int(os.environ.get("VRAMTOP_TESTS_OWNER", os.getpid())),
    )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Replace libnvidia-ml by a fake without GPUs; append to its ``gpus``."""
    fake = FakeDriver()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield fake
    fake.release()


@pytest.fixture
def quick_rehearsals(monkeypatch: pytest.MonkeyPatch, python_with_torch: str) -> None:
    """Rehearse with a Python that has imported torch already; nothing keeps the programs from real files."""
    monkeypatch.setattr(sys, "executable", python_with_torch)
    monkeypatch.setattr(isolated_run, "KEEPER", Path(__file__).with_name("plain_keeper.py"))


@pytest.fixture
def make_budget() -> Callable[..., Budget]:
    """Make a budget of ``device`` GiB: 1/16 CUDA context, 1/8 activations, the rest weights, gradients and states."""

    def make(
        job: Job | None = None, *, device: float = 40, low: float | None = None, high: float | None = None
    ) -> Budget:
        unit = round(device * GIB / 16)
        loading = Components(weights=3 * unit, context=unit)
        full = Components(weights=3 * unit, gradients=3 * unit, optimizer=6 * unit, activations=2 * unit, context=unit)
        size = full.total_bytes + unit
        return Budget(
            job=job or Job(name="llama-8b-sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B")),
            model=ModelFacts(parameters=8_030_261_248, trainable_parameters=8_030_261_248, count="approximate"),
            method="formula",
            phases=(
                Phase(name="loading", components=loading, outside_bytes=unit),
                Phase(name="forward", components=full, outside_bytes=unit),
                Phase(name="backward", components=full, outside_bytes=unit),
                Phase(name="optimizer step", components=full, outside_bytes=unit),
            ),
            peak=Peak(
                phase="backward",
                components=full,
                allocated_bytes=full.total_bytes - unit,
                reserved_bytes=full.total_bytes,
                device_bytes=size,
                low_bytes=size - unit if low is None else round(low * GIB),
                high_bytes=size + unit if high is None else round(high * GIB),
            ),
            steady_device_bytes=size,
            assumptions=("CUDA context of 500 MiB",),
            warnings=(),
        )

    return make


@pytest.fixture
def make_process() -> Callable[..., GpuProcess]:
    """Make a process that holds ``used`` GiB; None: its memory is unknown."""

    def make(pid: int = 4711, used: float | None = 30, **changes: Any) -> GpuProcess:
        facts: dict[str, Any] = {
            "pid": pid,
            "start_time": 1_000.0,
            "used_bytes": None if used is None else round(used * GIB),
            "kinds": ("compute",),
            "user": "ana",
            "name": "python",
            "command": f"python train.py --seed {pid}",
        }
        return GpuProcess(**(facts | changes))

    return make


@pytest.fixture
def make_gpu() -> Callable[..., GpuReading]:
    """Make an 80 GiB GPU whose used memory is that of its processes plus 1 GiB."""

    def make(index: int = 0, processes: Sequence[GpuProcess] = (), **changes: Any) -> GpuReading:
        used = sum(process.used_bytes or 0 for process in processes) + GIB
        facts: dict[str, Any] = {
            "index": index,
            "uuid": f"GPU-{index:08d}",
            "name": "NVIDIA H100 80GB HBM3",
            "total_bytes": 80 * GIB,
            "reserved_bytes": GIB // 2,
            "used_bytes": used,
            "free_bytes": 80 * GIB - GIB // 2 - used,
            "utilisation_percent": 98,
            "temperature_c": 63,
            "power_w": 412.0,
            "power_limit_w": 700.0,
            "processes": tuple(processes),
            "read_at": 2_000.0,
        }
        return GpuReading(**(facts | changes))

    return make


@pytest.fixture
def make_snapshot() -> Callable[..., Snapshot]:
    """Make a snapshot of these GPUs, taken 1,000 seconds after the processes started."""

    def make(gpus: Sequence[GpuReading], *, time: float = 2_000.0, **changes: Any) -> Snapshot:
        source = Source(kind="nvml", host="gpubox-3", driver_version="580.95", cuda_version="13.0")
        return Snapshot(**({"time": time, "source": source, "gpus": tuple(gpus)} | changes))

    return make


class ScriptedSource:
    """A source that returns the given snapshots in turn, then repeats the last one.

    Clear ``read_allowed`` to make the next read hang, set it to let the read return.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = list(snapshots)
        self.reads = 0
        self.read_allowed = threading.Event()
        self.read_allowed.set()

    def open(self) -> None:
        pass

    def read(self) -> Snapshot:
        self.read_allowed.wait(30)
        snapshot = self.snapshots[min(self.reads, len(self.snapshots) - 1)]
        self.reads += 1
        return replace(snapshot)  # each reading is a snapshot of its own

    def close(self) -> None:
        pass


@pytest.fixture
def scripted_source() -> type[ScriptedSource]:
    return ScriptedSource


@pytest.fixture
def make_mig_gpu(make_gpu: Callable[..., GpuReading]) -> Callable[..., GpuReading]:
    """Make an 80 GiB GPU in MIG mode: a GPU instance of 40 GiB with two compute instances, and one of 20 GiB.

    ``free`` holds the free GiB of the two GPU instances.
    """

    def make(
        index: int = 0, processes: Sequence[GpuProcess] = (), *, free: Sequence[float] = (39, 19), **changes: Any
    ) -> GpuReading:
        devices_by_instance = ((3, 0, "1c.3g.40gb", 40), (3, 1, "2c.3g.40gb", 40), (9, 0, "1g.20gb", 20))
        mig = tuple(
            MigReading(
                uuid=f"MIG-{index}-{instance}-{compute_instance}",
                gpu_instance=instance,
                compute_instance=compute_instance,
                profile=profile,
                total_bytes=total * GIB,
                used_bytes=round((total - free[instance == 9]) * GIB),
                free_bytes=round(free[instance == 9] * GIB),
            )
            for instance, compute_instance, profile, total in devices_by_instance
        )
        return make_gpu(index, processes, **({"mig": mig} | changes))

    return make
