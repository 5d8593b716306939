"""The probe in real processes: what it publishes, and what it does not touch."""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from vramtop.estimator.job.trainable import trainable_rules
from vramtop.monitor.probe import publisher, trainer
from vramtop.monitor.probe.launch import BOOTSTRAP, probed_environment
from vramtop.monitor.probe.probe_reader import ProbeReader, ProbeSample, find_probe
from vramtop.monitor.probe.publisher import encode_json
from vramtop.monitor.probe.trainer import callback_class

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, start_python: Start, write_stub_torch) -> Start:
    """Start Python code under the probe, beside a stub ``torch`` with a GPU."""
    write_stub_torch("cuda.allocated[0], cuda.peak = 5 << 20, 8 << 20")
    return partial(start_python, env=probed_environment({**os.environ, "PYTHONPATH": str(tmp_path)}))


def sample_of(pid: int, wanted: Callable[[ProbeSample], object] = lambda sample: True) -> ProbeSample:
    """Wait for the first sample that meets the condition, and return it."""
    reader = ProbeReader(pid)
    found: list[ProbeSample] = []

    def published() -> bool:
        sample = reader.read()
        if sample is not None and wanted(sample):
            found.append(sample)
        return bool(found)

    until(published)
    return found[0]


def test_allocator_counters_are_published_once_torch_is_imported(start: Start) -> None:
    process = start("import time, torch; time.sleep(60)")
    (device,) = sample_of(process.pid).devices
    assert (device.index, device.allocated_bytes, device.reserved_bytes) == (0, 5 << 20, 7 << 20)
    assert (device.allocated_peak_bytes, device.reserved_peak_bytes, device.retries) == (8 << 20, 9 << 20, 1)


def test_the_sample_of_a_stopped_process_becomes_stale(start: Start) -> None:
    process = start("import time, torch; time.sleep(60)")
    sample = sample_of(process.pid)
    assert sample.stale_seconds(sample.time + 1) is None
    os.kill(process.pid, signal.SIGSTOP)
    still = ProbeReader(process.pid).read()
    assert still.stale_seconds(still.time + 60) == 60


def test_figures_are_published_repeatedly(start: Start) -> None:
    process = start("import time, torch; input(); torch.cuda.allocated[0] = 11; time.sleep(60)")
    first = sample_of(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    later = sample_of(process.pid, lambda sample: sample.devices[0].allocated_bytes == 11)
    assert later.time > first.time


@pytest.mark.parametrize(
    ("told", "trainer", "model"),
    [
        ({"trainer": ["a"], "model": "b"}, None, None),
        ({"trainer": {}, "model": {"parameters": {"bfloat16": "x", "float32": 4}}}, {}, {"float32": 4}),
        ({"model": {"parameters": 7}}, None, {}),
    ],
)
def test_untrusted_figures_are_checked(told: dict[str, object], trainer: object, model: object) -> None:
    """Another user's process may publish anything, and root reads it."""
    file = os.memfd_create("vramtop-probe")
    try:
        payload = json.dumps({"pid": os.getpid(), "time": 5.0, **told}).encode()
        os.write(file, struct.pack("<8sQII", b"VRAMTOP1", 2, len(payload), 0) + payload)
        sample = ProbeReader(os.getpid()).read()
    finally:
        os.close(file)
    assert sample.trainer == trainer
    assert (sample.model and sample.model["parameters"]) == model or sample.model is model


def test_a_process_without_torch_has_no_probe(start: Start) -> None:
    process = start("import json, time, sys; print('up', flush=True); time.sleep(60)")
    process.stdout.readline()
    assert find_probe(process.pid) is None
    assert ProbeReader(process.pid).read() is None


def test_neither_torch_nor_cuda_is_touched_by_the_probe(start: Start) -> None:
    code = """
        import sys, time
        import types
        class Cuda(types.ModuleType):
            def __getattr__(self, name):
                if name == "is_initialized":
                    return lambda: False
                print("touched", name, flush=True)
                raise AttributeError(name)
        import torch
        torch.cuda = Cuda("torch.cuda")
        state = sys.modules["_vramtop_probe.publisher"]._state
        before = state["sequence"]
        while state["sequence"] < before + 4:  # it has been published twice since
            time.sleep(0.01)
        print("imported", "transformers" in sys.modules, flush=True)
    """
    output, errors = start(code).communicate(timeout=60)
    assert (output, errors) == ("imported False\n", "")


def test_the_users_own_sitecustomize_runs_and_its_errors_are_shown(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', flush=True)\n")
    assert start("import sitecustomize; print(sitecustomize.__file__)").communicate(timeout=60)[0].splitlines() == (
        ["mine", str(tmp_path / "sitecustomize.py")]
    )
    (tmp_path / "sitecustomize.py").write_text("raise ImportError('broken', name='sitecustomise')\n")
    output, errors = start("print('goes on')").communicate(timeout=60)
    assert output == "goes on\n"
    assert "broken" in errors


class FakeModel:
    """A model with a trained and a frozen weight, and a config, as transformers' models have them."""

    config = SimpleNamespace(to_dict=lambda: {"hidden_size": 16, "hub_token": "secret"}, _attn_implementation="sdpa")
    is_gradient_checkpointing = True

    def parameters(self) -> list[SimpleNamespace]:
        sizes = ((True, 6), (False, 4))
        return [SimpleNamespace(dtype="torch.float32", requires_grad=own, numel=lambda n=n: n) for own, n in sizes]


def test_the_callback_publishes_settings_model_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, Any] = {}
    steps: list[object] = []
    monkeypatch.setattr(publisher, "start", lambda: None)
    monkeypatch.setattr(publisher, "publish_facts", lambda **facts: published.update(facts))
    monkeypatch.setattr(publisher, "step_ended", steps.append)
    callback = callback_class(object)()
    arguments = SimpleNamespace(to_dict=lambda: {"per_device_train_batch_size": 2, "hub_token": "secret"})
    callback.on_train_begin(arguments, SimpleNamespace(max_steps=3), None, model=FakeModel())
    callback.on_step_end(None, state := SimpleNamespace(global_step=1), None)
    assert steps == [(id(state), 1)]
    assert published["trainer"] == {"per_device_train_batch_size": 2}
    assert published["max_steps"] == 3
    assert published["model"] == {
        "class": "FakeModel",
        "parameters": {"float32 trained": 6, "float32 frozen": 4},
        "config": {"hidden_size": 16},
        "attention": "sdpa",
        "gradient_checkpointing": True,
        "sharded": False,
        "trained": None,
    }


def test_the_names_of_what_is_trained_are_published_in_few_words() -> None:
    names = [f"model.layers.{number}.{part}.weight" for number in range(12) for part in ("mlp", "norm", "attn")]
    trained = {name for name in names if "norm" in name or ".layers.11.attn" in name} | {"lm_head.weight"}

    class Model:
        def named_parameters(self) -> Iterator[tuple[str, Any]]:
            for name in [*names, "lm_head.weight"]:
                yield f"module._orig_mod.{name}", SimpleNamespace(requires_grad=name in trained)

    patterns = trainer._trained_names(Model())
    assert patterns == ["model.layers.*.norm.weight", "model.layers.11.attn.weight", "lm_head.weight"]
    rules = trainable_rules(patterns)
    assert {name for name in [*names, "lm_head.weight"] if rules.trains(name)} == trained
    names.clear()
    assert trainer._trained_names(Model()) is None  # everything trains


def test_a_script_can_report_its_own_facts(start_python: Start) -> None:
    code = """
        import time
        from vramtop.monitor import report, step_ended
        report(micro_batch=4)
        step_ended()
        time.sleep(60)
    """
    assert not sample_of(start_python(code).pid, lambda sample: sample.steps == 1).devices


def test_the_command_runs_unchanged_under_the_probe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vramtop.tui.cli", "run", "--", sys.executable, "-c"]
    code = "import os, sys; print(os.environ['PYTHONPATH'].split(os.pathsep)[0]); sys.exit(7)"
    done = subprocess.run([*command, code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{BOOTSTRAP}\n", 7)


@pytest.mark.parametrize(("words", "sentence"), [((), "no command given"), (("/no/such",), "/no/such: cannot be")])
def test_a_command_that_cannot_be_started_is_reported_in_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    command = [sys.executable, "-m", "vramtop.tui.cli", "run", *(["--", *words] if words else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"vramtop: {sentence}")


def test_modules_beside_the_script_run_no_earlier_under_the_probe(start: Start, tmp_path: Path) -> None:
    """A json.py of the user's stands first on the path: the probe neither imports it nor needs the real one."""
    script_folder = tmp_path / "script"
    script_folder.mkdir()
    for name in ("json", "signal", "importlib", "sitecustomize"):
        (script_folder / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w').close()\n")
    script = script_folder / "train.py"
    script.write_text("import sys, time, torch\nprint('\\n'.join(sys.path), flush=True)\ntime.sleep(60)\n")
    process = start(f"import sys; sys.path[0] = {str(script_folder)!r}; exec(open({str(script)!r}).read())")

    (device,) = sample_of(process.pid).devices

    assert device.allocated_bytes == 5 << 20
    assert not [name for name in ("json", "signal", "importlib", "sitecustomize") if (tmp_path / name).exists()]


@pytest.mark.parametrize(
    "path", [None, "", "/nowhere", ":/nowhere", "/nowhere:", ".", "/nowhere::.:/elsewhere", f"{BOOTSTRAP}:/nowhere"]
)
def test_a_program_keeps_the_path_that_it_would_have(tmp_path: Path, path: str | None) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.path)\n")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before = environ | ({} if path is None else {"PYTHONPATH": path.replace(f"{BOOTSTRAP}:", "")})
    under = probed_environment(environ | ({} if path is None else {"PYTHONPATH": path}))
    plain, probed = (
        subprocess.run([sys.executable, "show.py"], cwd=tmp_path, env=each, capture_output=True, text=True, check=True)
        for each in (before, under)
    )
    assert probed.stdout == plain.stdout


@pytest.mark.parametrize(
    "value", [None, True, 3, -2.5, 'a"b\\c\n\x7f\x1b é 😀 \ud800', [1, (2,), {"a": None}], {1: 2, None: 3, 2.5: 4}, {}]
)
def test_the_probes_json_is_that_of_the_standard_library(value: object) -> None:
    assert json.loads(encode_json(value)) == json.loads(json.dumps(value))


def test_the_probes_json_expresses_anything_or_refuses() -> None:
    class Name(str):
        pass

    class Number(int):
        def __str__(self) -> str:
            return "seven"

    assert json.loads(encode_json({"a": Path("/x"), (1, 2): 3, "n": Name("é"), "i": Number(7), "f": float("nan")})) == {
        "a": "/x", "n": "é", "i": 7, "f": None
    }  # fmt: skip
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="too deeply"):
        encode_json(circle)
