"""What the programs share: a training beside which something is measured, vramtop with a timeout, a line of figures."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pynvml

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
SIMULATED_GIB = 80
VRAMTOP = (str(Path(sys.executable).with_name("vramtop")),)
_ENDLESS = 1_000_000_000
_START_SECONDS, _STOP_SECONDS = 180.0, 10.0
_PR_SET_PDEATHSIG = 1
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
_printed: list[str] = []
"""Names of the lines with figures."""

sys.path += [str(TESTS), str(TESTS / "bench")]


class ProgramError(Exception):
    """Something that cannot be measured; the message says why."""


def print_figures(name: str, **figures: Any) -> None:
    """Print one line of figures."""
    rounded = {key: round(value, 6) if isinstance(value, float) else value for key, value in figures.items()}
    sys.stdout.write(json.dumps({"name": name, **rounded}) + "\n")
    sys.stdout.flush()
    _printed.append(name)


def exit_code() -> int:
    """Return the exit code of the program: 1 if it could not measure anything."""
    return 0 if _printed else 1


@contextlib.contextmanager
def errors_as(name: str) -> Iterator[None]:
    """Print what goes wrong as a line of this name, so that the program goes on with what is left."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the rest is to be measured
        sentence = " ".join(str(error).split())[:300]
        if not isinstance(error, ProgramError):
            traceback.print_exc()
            sentence = f"{type(error).__name__}: {sentence}"
        sys.stdout.write(json.dumps({"name": name, "error": sentence}) + "\n")
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command of vramtop answered."""

    found: dict[str, Any]
    """Its JSON; empty: it printed none."""
    figures: dict[str, Any]
    """Its seconds, its exit code, and its last sentence on standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the programs run, and what they train there."""

    cpu: bool
    """There is no GPU: the model is tiny, and times are short."""
    simulated: bool
    """vramtop is shown a GPU that is made up."""
    folder: Path
    """For files; it is removed at the end."""
    batch: int
    length: int

    @property
    def model(self) -> Path:
        """Folder with the configuration of the model that is trained."""
        return self.folder / "model"

    @property
    def figures(self) -> Path:
        """File with the figures of the training."""
        return self.folder / "figures.json"

    def command(self, *words: str, pids: Sequence[int] = ()) -> list[str]:
        """Return the command line of vramtop; where the GPU is made up, these processes are on it."""
        if not self.simulated:
            return [*VRAMTOP, *words]
        listed = ",".join(map(str, pids)) or "-"
        return [sys.executable, str(TESTS / "simulated_host.py"), "1", str(SIMULATED_GIB), listed, *words]

    def vramtop(self, *words: str, pids: Sequence[int] = ()) -> Answer:
        """Run a command of vramtop; ``subprocess.TimeoutExpired`` if it takes two minutes."""
        begun = time.monotonic()
        command = self.command(*words, pids=pids)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        seconds, lines = time.monotonic() - begun, done.stderr.strip().splitlines()
        found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        sentence = lines[-1][:300] if lines else None
        return Answer(found, {"seconds": seconds, "exit_code": done.returncode, "sentence": sentence})

    def training_command(self, *words: str, steps: int, batch: int, length: int) -> list[str]:
        """Return the command line of a training."""
        command = [os.environ.get("VRAMTOP_TORCH_PYTHON", sys.executable), str(HERE / "train.py")]
        command += ["--model_name_or_path", str(self.model), "--output_dir", str(self.folder / "output"), "--bf16"]
        command += ["--max_length", str(length), "--per_device_train_batch_size", str(batch), "--max_steps", str(steps)]
        command += ["--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "True", *words]
        return [*command, "--use_cpu"] if self.cpu else command

    @contextlib.contextmanager
    def training(
        self, *, steps: int = _ENDLESS, batch: int | None = None, length: int | None = None, probe: bool = True
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a training, with the probe or without, wait for its first step, and end it at the end.

        Raises:
            ProgramError: it makes no step.
        """
        self.figures.unlink(missing_ok=True)
        log = self.folder / "training.log"
        words = ("--figures", str(self.figures))
        command = self.training_command(*words, steps=steps, batch=batch or self.batch, length=length or self.length)
        if probe:  # vramtop run becomes the training, so its pid is that of the training
            command = [*VRAMTOP, "run", "--", *command]
        with log.open("wb") as output, started(command, output) as process:
            until = time.monotonic() + _START_SECONDS
            while not self.figures.exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise ProgramError(f"the training made no step: {last_line(log)}")
                time.sleep(0.1)
            yield process


@contextlib.contextmanager
def started(command: Sequence[str], output: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with its output in a file, and end it at the end."""
    with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def machine(*, cpu: bool) -> Iterator[Machine]:
    """Find out what this machine is; SIGTERM ends the program as its end does, with all that it has started."""
    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(OSError, AttributeError):  # also if who has started the program is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="vramtop-", ignore_cleanup_errors=True) as name:
        os.environ |= {f"XDG_{kind}_HOME": name for kind in ("CONFIG", "DATA", "CACHE")}
        os.environ |= {"VRAMTOP_CONFIG": os.devnull, "VRAMTOP_HISTORY_ENABLED": "false"}
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # of several GPUs the Trainer would use all
        sizes, vocabulary = ((1024, 12, 16, 8, 2816), 32_000)
        if cpu:
            os.environ["OMP_NUM_THREADS"] = "1"
            sizes, vocabulary = ((64, 2, 4, 2, 176), 256)
        found = Machine(
            cpu=cpu,
            simulated=cpu and not _has_driver(),
            folder=Path(name),
            batch=2 if cpu else 4,
            length=32 if cpu else 1024,
        )
        found.model.mkdir()
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary}
        (found.model / "config.json").write_text(json.dumps(config | dict(zip(_SIZES, sizes, strict=True))))
        yield found


def last_line(log: Path) -> str:
    """Return the last line that a program printed, shortened."""
    return log.read_text(errors="replace").strip().rpartition("\n")[2][:300] or "it printed nothing"


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the end
    sys.exit(128 + number)


def _has_driver() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True
