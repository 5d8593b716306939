"""The probe does not affect the program that it runs in, whatever the program does."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vramtop.monitor.probe.launch import probed_environment

HELP = """
    import json, os, struct, time
    def probes():
        found = []
        for number in os.listdir("/proc/self/fd"):
            try:
                if os.readlink("/proc/self/fd/" + number) == "/memfd:vramtop-probe (deleted)":
                    found.append(int(number))
            except OSError:
                pass
        return found
    def sample(file=None):
        file = probes()[0] if file is None else file
        for _ in range(1000):
            magic, sequence, figures, facts = struct.unpack("<8sQII", os.pread(file, 24, 0))
            if magic == b"VRAMTOP1" and sequence % 2 == 0:
                try:
                    texts = os.pread(file, facts, 24 + figures), os.pread(file, figures, 24)
                    return {**json.loads(texts[0]), **json.loads(texts[1])}
                except ValueError:
                    pass  # the probe's thread wrote at the same time as next_sample
            time.sleep(0.01)
    def next_sample():
        # does not wait for the thread, which publishes once a second
        publisher()._quietly(publisher()._publish)
        return sample()
    def publisher():
        import sys
        return sys.modules.get("vramtop.monitor.probe.publisher") or sys.modules["_vramtop_probe.publisher"]
    def wait_for_writes(count):
        until = publisher()._state["sequence"] + 2 * count
        while publisher()._state["sequence"] < until:
            time.sleep(0.01)
"""


@pytest.fixture
def run(tmp_path, write_stub_torch):
    """Return a function that runs code under the probe, with a stub ``torch``, and returns what it has printed."""
    write_stub_torch("cuda.allocated[0], cuda.peak = 7, 9")
    (tmp_path / "looking.py").write_text(textwrap.dedent(HELP))

    def run_code(code, *options, python=sys.executable, paths=(), status=0, **environ):
        folders = [str(tmp_path), *map(str, paths)]
        done = subprocess.run(
            [str(python), *options, "-c", textwrap.dedent(code)],
            env=probed_environment({**os.environ, "PYTHONPATH": os.pathsep.join(folders), **environ}),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == status, done.stderr
        return done.stdout, done.stderr

    return run_code


@pytest.mark.slow
def test_a_program_that_closes_all_descriptors_keeps_those_it_opens_next(run, tmp_path):
    """The probe and its children must not write to or close a descriptor that has been reused for another file."""
    assert run(f"""
        import os, time, torch, warnings
        from looking import probes, wait_for_writes
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads, such as ours
        (number,) = probes()
        os.closerange(3, 100)
        opened = []
        while number not in opened:
            opened.append(os.open({str(tmp_path / "mine")!r}, os.O_RDWR | os.O_CREAT))
        os.write(number, b"mine")
        wait_for_writes(2)
        child = os.fork()
        if child == 0:
            os.write(number, b" still")
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.pread(number, 100, 0).decode())
    """) == ("0 mine still\n", "")


def test_at_the_limit_of_open_files_there_is_no_probe_and_no_message(run):
    assert run("""
        import resource
        import torch as first  # its publisher is loaded
        import looking, os, sys
        from looking import publisher
        publisher().stop()
        assert not looking.probes()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))
        publisher().start()
        publisher().publish_facts(more=1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096))
        assert not looking.probes()
        publisher().start()
        print(looking.sample()["more"])
    """) == ("1\n", "")


@pytest.mark.parametrize("refused", ["memfd_create", "ctypes", "CDLL", "start"])
def test_the_program_runs_on_if_the_system_refuses_the_probe(run, refused):
    assert run(f"""
        import ctypes, errno, os, sys, threading
        def refuse(*args, **kwargs):
            raise {"RuntimeError" if refused == "start" else "OSError"}(errno.EPERM, "no")
        where = {{"memfd_create": os, "CDLL": ctypes, "start": threading.Thread}}.get({refused!r})
        if where is None:
            sys.modules["ctypes"] = None
        else:
            setattr(where, {refused!r}, refuse)
        import torch
        from looking import probes
        print(len(probes()), torch.__version__)
    """) == ("0 2.99\n", "")


def test_the_program_runs_on_under_a_file_size_limit(run):
    assert run("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        import torch
        from looking import probes
        print(len(probes()))
    """) == ("0\n", "")


def test_the_probe_never_uses_the_descriptor_of_a_closed_standard_stream(run):
    _, err = run("""
        import os
        os.close(0)
        os.close(1)
        import torch
        from looking import next_sample, probes
        next_sample()
        os.write(2, str([number > 2 for number in probes()]).encode())
    """)
    assert err == "[True]"


def test_signals_that_the_program_waits_for_are_delivered_to_it(run):
    out, _ = run("""
        import os, signal, torch
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # the probe's thread was there before
        os.kill(os.getpid(), signal.SIGTERM)
        print(signal.sigwait([signal.SIGTERM]) == signal.SIGTERM)
    """)
    assert out == "True\n"


@pytest.mark.parametrize("end", ["os._exit(5)", "os.kill(os.getpid(), 9)", "sys.exit(5)", "raise KeyError(5)"])
def test_the_exit_of_a_program_is_unchanged(run, end):
    status = {"os._exit(5)": 5, "os.kill(os.getpid(), 9)": -9, "sys.exit(5)": 5, "raise KeyError(5)": 1}[end]
    out, err = run(f"import os, sys, torch\n{end}", status=status)
    assert out == ""
    assert ("KeyError: 5" in err) == (status == 1)


def test_a_program_started_by_exec_has_its_own_probe(run):
    out, _ = run("""
        import os, sys, torch
        from looking import probes
        if sys.argv[-1] == "again":
            print("again", len(probes()))
        else:
            print(len(probes()), flush=True)
            os.execv(sys.executable, [*sys.orig_argv, "again"])
    """)
    assert out == "1\nagain 1\n"


def test_spawned_processes_have_their_own_probe_and_forked_ones_have_none(run, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
            import multiprocessing, sys
            import torch
            from looking import probes
            def work(queue):
                queue.put(len(probes()))
            if __name__ == "__main__":
                for method in ("spawn", "fork"):
                    context = multiprocessing.get_context(method)
                    queue = context.Queue()
                    process = context.Process(target=work, args=(queue,))
                    process.start()
                    print(method, queue.get())
                    process.join()
        """)
    )
    out, _ = run(f"import runpy; runpy.run_path({str(tmp_path / 'program.py')!r}, run_name='__main__')")
    assert out.splitlines() == ["spawn 1", "fork 0"]


def test_a_forked_rank_gets_a_probe_when_it_starts_one(run):
    out, _ = run("""
        import os, torch
        from looking import next_sample, probes, publisher
        publisher().step_ended()
        next_sample()
        child = os.fork()
        if child == 0:
            publisher().start()
            told = next_sample()
            print(told["pid"] == os.getpid(), told["steps"]["count"], len(probes()), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(next_sample()["pid"] == os.getpid())
    """)
    assert out == "True 0 1\nTrue\n"


def test_a_lock_held_during_a_fork_does_not_block_the_child(run):
    out, _ = run("""
        import os, threading, torch
        from looking import publisher, sample
        held, go = threading.Event(), threading.Event()
        def hold():
            with publisher()._lock:
                held.set()
                go.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            publisher().start()
            print(sample()["pid"] == os.getpid(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        go.set()
    """)
    assert out == "True\n"


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_isolated_interpreters_start_no_probe(run, tmp_path, option):
    out, err = run(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import looking, torch
        print(len(looking.probes()))
        """,
        option,
    )
    assert (out, err) == ("0\n", "")


def test_a_virtual_environment_has_a_probe(run, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    code = "import looking, sys, torch; print(len(looking.probes()), sys.prefix)"
    assert run(code, python=tmp_path / "venv/bin/python")[0] == f"1 {tmp_path / 'venv'}\n"


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_other_python_versions_run_and_publish_since_3_8(run, version):
    python = other_python(version)
    out, err = run(
        "import looking, torch; print([looking.sample()['pid'] for _ in looking.probes()] != [])", python=python
    )
    assert (out, err) == (f"{version not in ('3.6', '3.7')}\n", "")


def other_python(version):
    """Return the interpreter of this version, or skip the test."""
    by_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = str(by_pyenv[0]) if by_pyenv else shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    return found


def test_with_another_allocator_only_steps_are_published(run):
    out, _ = run("""
        import torch
        torch.cuda.backend = "cudaMallocAsync"
        from looking import next_sample, publisher
        publisher().step_ended()
        told = next_sample()
        print(told["devices"], told["steps"]["count"])
    """)
    assert out == "[] 1\n"


def test_a_failing_gpu_does_not_affect_other_figures(run):
    assert run("""
        import torch
        from looking import next_sample
        next_sample()
        def fail(index):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        torch.cuda.memory_stats_as_nested_dict = fail
        told = next_sample()
        print(told["devices"], told["steps"]["count"])
    """) == ("[] 0\n", "")


def test_counts_continue_when_the_program_resets_them(run):
    out, _ = run("""
        import torch
        from looking import next_sample
        torch.cuda.ooms = 2
        (first,) = next_sample()["devices"]
        torch.cuda.ooms, torch.cuda.peak = 0, 8
        (second,) = next_sample()["devices"]
        torch.cuda.ooms = 1
        (third,) = next_sample()["devices"]
        print([each["out_of_memory"] for each in (first, second, third)])
        print([each["allocated_peak_bytes"] for each in (first, second, third)])
        print(first["out_of_memory_time"] == second["out_of_memory_time"] < third["out_of_memory_time"])
    """)
    assert out.splitlines() == ["[2, 2, 3]", "[9, 9, 9]", "True"]


def test_facts_that_cannot_be_encoded_do_not_stop_publishing(run):
    assert run("""
        import torch
        from looking import next_sample, publisher
        class Bad:
            def __str__(self):
                raise ValueError("no")
        loop = []
        loop.append(loop)
        publisher().publish_facts(micro_batch=4)
        publisher().publish_facts(bad=Bad())
        publisher().publish_facts(loop=loop)
        publisher().publish_facts(odd={(1, 2): 3}, more=5)
        told = next_sample()
        print(told["micro_batch"], told["more"], "bad" in told, "loop" in told)
        publisher().publish_facts(large="x" * (1 << 20))
        print("large" in next_sample(), told["devices"] == next_sample()["devices"])
    """) == ("4 5 False False\nFalse True\n", "")


@pytest.mark.parametrize("first", ["report", "torch"])
def test_a_script_that_reports_under_the_probe_has_only_one_probe(run, first):
    lines = ["from vramtop.monitor import report; report(micro_batch=4)", "import torch"]
    code = "\n".join([*(lines if first == "report" else reversed(lines)), "import looking", "import threading"])
    checks = """
print(len(looking.probes()), looking.next_sample()["micro_batch"])
print([thread.name for thread in threading.enumerate()])
"""
    out, _ = run(code + checks, paths=[Path(path) for path in sys.path if path])
    assert out.splitlines() == ["1 4", "['MainThread', 'vramtop-probe']"]


def test_steps_of_a_loop_are_counted_and_timed(run):
    out, _ = run("""
        import time, torch
        from looking import next_sample, publisher
        publisher().step_ended()
        print(next_sample()["steps"]["seconds"])
        publisher().step_ended()
        publisher().step_began()
        time.sleep(0.2)
        publisher().step_ended("third")
        publisher().step_ended("third")
        steps = next_sample()["steps"]
        print(steps["count"], steps["seconds"] >= 0.2, steps["began"])
    """)
    assert out.splitlines() == ["None", "3 True None"]
