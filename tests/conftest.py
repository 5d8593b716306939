"""Fixtures of the whole test suite: factories of budgets, snapshots and sources with figures that are easy to check."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from execnet import XSpec
from exporter import Exporter, exporters
from fake_driver import FakeDriver
from hypothesis import HealthCheck, settings
from preloaded_python import COLLECTED, preloaded_python

from vramtop.estimator.trace import isolated_run, worker_pool
from vramtop.estimator.trace.worker_pool import POOL, keep_idle_workers
from vramtop.estimator.trace.worker_process import Worker


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


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is cached, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
def start_program() -> Iterator[Callable[..., "subprocess.Popen[Any]"]]:
    """Start programs, with pipes to them; they and their children are killed after the test."""
    started: list[subprocess.Popen[Any]] = []

    def start(command: Sequence[str], **more: Any) -> "subprocess.Popen[Any]":
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen(command, start_new_session=True, **{**pipes, "text": True, **more}))
        return started[-1]

    yield start
    for process in started:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        with process, contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in children:  # in a session of its own
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.fixture
def start_python(start_program: Callable[..., Any]) -> Callable[..., "subprocess.Popen[Any]"]:
    """Start Python code in the same way, with words as its command line."""
    return lambda code, *words, **more: start_program([sys.executable, "-c", textwrap.dedent(code), *words], **more)


@pytest.fixture
def start_script(start_program: Callable[..., Any], tmp_path: Path) -> Callable[..., "subprocess.Popen[Any]"]:
    """Start ``train.py`` with these flags in the test's folder, and wait for the line that it prints."""

    def start(*flags: str, text: str = "print(flush=True)\ninput()\n", **more: Any) -> "subprocess.Popen[Any]":
        (tmp_path / "train.py").write_text(text)
        process = start_program([sys.executable, "train.py", *flags], cwd=tmp_path, **more)
        process.stdout.readline()
        return process

    return start


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    """Start exporters; they are ended after the test."""
    with exporters(tmp_path) as start:
        yield start
