"""Programs that try to change what is real, at each level of isolation, and what is told of what they looked at."""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import until

from vramtop.estimator.isolation import landlock
from vramtop.estimator.isolation.protocol import LEVELS, REPORT, SHARED, VARIABLE
from vramtop.estimator.isolation.seen import EXISTS, LISTED, USED, signature
from vramtop.estimator.trace.isolated_run import KEEPER

WATCHED = KEEPER.parents[1] / "worker" / "rehearsal" / "watched.py"
PRELUDE = f"""
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("watched", {str(WATCHED)!r})
watched = importlib.util.module_from_spec(spec)
spec.loader.exec_module(watched)
watched.tell_keeper(int(os.environ.pop({VARIABLE!r}).split()[1]))
"""
ATTACKS = {
    "open to write": "open(V + '/file', 'w').write('x')",
    "open to append": "open(V + '/file', 'a').write('x')",
    "open to update": "open(V + '/file', 'r+').write('x')",
    "open a new one": "open(V + '/new', 'x').write('x')",
    "truncate": "os.truncate(V + '/file', 1)",
    "open and truncate": "os.open(V + '/file', os.O_RDONLY | os.O_TRUNC)",
    "map": "f = open(V + '/file', 'r+b'); m = mmap.mmap(f.fileno(), 4); m[0] = 1; m.flush()",
    "unlink": "os.unlink(V + '/file')",
    "unlink by descriptor": "os.unlink('file', dir_fd=os.open(V, os.O_RDONLY))",
    "rename": "os.rename(V + '/file', V + '/renamed')",
    "rename by keyword": "os.rename(src=V + '/file', dst=V + '/renamed')",
    "rename below Python": "posix.rename(V + '/file', V + '/renamed')",
    "rename over": "open(T + '/t', 'w').write('x'); os.replace(T + '/t', V + '/file')",
    "rename a folder": "os.rename(V + '/folder', V + '/renamed')",
    "rename away": "os.rename(V + '/file', T + '/away')",
    "remove a folder": "os.rmdir(V + '/empty')",
    "remove a tree": "shutil.rmtree(V + '/folder')",
    "make a folder": "os.makedirs(V + '/a/b')",
    "make a link": "os.symlink('file', V + '/link')",
    "make a hard link": "os.link(V + '/file', V + '/hard')",
    "write through a hard link": "os.link(V + '/file', T + '/hard'); open(T + '/hard', 'w').write('x')",
    "write through a link": "os.symlink(V, T + '/latest'); open(T + '/latest/file', 'w').write('x')",
    "write through a link that is there": "open(V + '/latest/inner', 'w').write('x')",
    "remove through a link": "os.symlink(V, T + '/l2'); shutil.rmtree(T + '/l2/folder')",
    "write through /proc": "os.chdir(V); open('/proc/self/cwd/file', 'w').write('x')",
    "write through a descriptor": "os.open(V, os.O_RDONLY); f = os.open(V + '/file', os.O_RDONLY);"
    " open(f'/dev/fd/{f}', 'w').write('x')",
    "write through a thread's /proc": "os.chdir(V); open('/proc/thread-self/cwd/file', 'w').write('x')",
    "write through /proc/PID/root": "open(f'/proc/{os.getpid()}/root' + V + '/file', 'w').write('x')",
    "chmod": "os.chmod(V + '/file', 0o777)",
    "fchmod": "os.fchmod(os.open(V + '/file', os.O_RDONLY), 0o777)",
    "chmod a folder": "os.chmod(V, 0o777)",
    "chmod a device": "os.chmod('/dev/null', 0o600)",
    "chmod standard input": "os.fchmod(0, 0o600)",
    "chown": "os.chown(V + '/file', 12345, 12345)",
    "fchown": "os.fchown(os.open(V + '/file', os.O_RDONLY), 12345, 12345)",
    "utime": "os.utime(V + '/file', (1, 1))",
    "utime of a descriptor": "os.utime(os.open(V + '/file', os.O_RDONLY), (1, 1))",
    "setxattr": "os.setxattr(V + '/file', 'user.a', b'x')",
    "removexattr": "os.removexattr(V + '/file', 'user.there')",
    "mknod": "os.mknod(V + '/node')",
    "mkfifo": "os.mkfifo(V + '/fifo')",
    "sqlite": "c = sqlite3.connect(V + '/data.sqlite'); c.execute('create table t (a)'); c.commit()",
    "a child": "subprocess.run(['sh', '-c', f'echo x > {V}/file; rm -rf {V}/folder; mv {V}/empty {V}/moved'])",
    "a child that left": "subprocess.Popen(['setsid', 'sh', '-c', f'echo x > {V}/left']).wait()",
    "a fork": "os.fork() or (open(V + '/forked', 'w').write('x'), os._exit(0)); os.wait()",
    "a thread": "t = threading.Thread(target=lambda: open(V + '/threaded', 'w').write('x')); t.start(); t.join()",
    "C: open": "f = libc.open(V.encode() + b'/file', 1); libc.write(f, b'x', 1)",
    "C: creat": "libc.creat(V.encode() + b'/created', 0o600)",
    "C: rename": "libc.rename(V.encode() + b'/file', V.encode() + b'/renamed')",
    "C: unlink": "libc.unlink(V.encode() + b'/file')",
    "C: chmod": "libc.chmod(V.encode() + b'/file', 0o777)",
    "C: system": "libc.system(b'rm -rf ' + V.encode() + b'/folder')",
    "C: exchange": "open(T + '/e', 'w'); libc.renameat2(-100, V.encode() + b'/file', -100, T.encode() + b'/e', 2)",
    "copy into": "shutil.copyfile('/etc/hostname', V + '/file')",
    "sendfile": "os.sendfile(os.open(V + '/file', os.O_RDWR), os.open('/etc/hostname', os.O_RDONLY), 0, 1)",
    "fallocate": "os.posix_fallocate(os.open(V + '/file', os.O_RDWR), 0, 4096)",
    "open by magic link after unlink": "f = os.open(V + '/file', os.O_PATH);"
    " open(f'/proc/self/fd/{f}', 'a').write('x')",
    "shared memory of others": "open('/dev/shm/' + SHM, 'w').write('x')",
    "a socket in the file system": "s = socket.socket(socket.AF_UNIX); s.connect(V + '/socket'); s.send(b'x')",
    "a datagram to a socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', V + '/gram')",
    "the attributes of a file": "fcntl.ioctl(os.open(V + '/file', os.O_RDONLY), 0x40086602, bytes([64] + [0] * 7))",
    "xattr by a new call": "libc.syscall(463, -100, V.encode() + b'/file', 0, b'user.new', b'x', 1, 0)",
    "shared memory below a folder of others": "open('/dev/shm/' + SHM + '-folder/file', 'w').write('x')",
    "shared memory that stays": "open('/dev/shm/' + SHM + '-left', 'w').write('x')",
    "System V memory that stays": "assert libc.shmget(77001, 4096, 0o1600) < 0",
    "a message queue that stays": "assert ctypes.CDLL('librt.so.1').mq_open(MQ.encode(), 0o102, 0o600, None) < 0",
    "a limit of a process": "resource.prlimit(PID, resource.RLIMIT_CPU, (1, 1))",
    "a priority of a process": "os.setpriority(os.PRIO_PROCESS, PID, 5)",
    "the processors of a process": "os.sched_setaffinity(PID, {0})",
    "a process's memory": "open(f'/proc/{PID}/mem', 'r+b')",
    "reading a pipe": "assert not os.read(os.open(V + '/full', os.O_RDONLY | os.O_NONBLOCK), 9)",
    "a namespace below": "assert libc.unshare(0x10000000) < 0 or LEVEL != 'overlay'",
    "a key of the login's": "assert libc.syscall(250, 0, -3, 0) < 0",
    "a message to a socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, V + '/gram')",
    "an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + ABSTRACT); s.send(b'x')",
    "a signal": "os.kill(PID, 9)",
    "a signal of a pipe's owner": "r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, PID); "
    "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b'x')",
    "a pipe in the file system": "os.write(os.open(V + '/pipe', os.O_WRONLY | os.O_NONBLOCK), b'x')",
}
"""Python that changes a file, folder, device, socket or process outside; each is run after the others."""


def keeper_of(scratch: Path, folder: Path, words: list[str], *, level: str = "", offline: bool = False) -> list[str]:
    told = [str(scratch), str(folder), level, "offline" if offline else ""]
    return [sys.executable, "-I", "-S", str(KEEPER), *told, *words]


def start(words: list[str], folder: Path, tmp_path: Path, **more: object) -> tuple[subprocess.Popen[bytes], Path]:
    scratch = tmp_path / f"scratch{time.monotonic_ns()}"
    (scratch / SHARED).mkdir(parents=True)
    keeper = keeper_of(scratch, folder, words, **more)
    process = subprocess.Popen(
        keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    return process, scratch


def run(words: list[str], folder: Path, tmp_path: Path, **more: object) -> tuple[str, dict]:
    """Run a program to its end; return its output and the keeper's report."""
    process, scratch = start(words, folder, tmp_path, **more)
    with process:
        output = process.stdout.read().decode()
        file = scratch / REPORT
        report = json.loads(file.read_text()) if file.exists() else {}
        process.stdin.close()
        process.wait(30)
    assert not scratch.exists()
    return output, report


def python(text: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + text]


def require(level: str) -> None:
    if level == "landlock" and not landlock.version():
        pytest.skip("this kernel has no Landlock")


@pytest.fixture(scope="session")
def overlay_works(tmp_path_factory: pytest.TempPathFactory) -> bool:
    folder = tmp_path_factory.mktemp("overlay")
    _, report = run(["/bin/true"], folder, folder)
    works = bool(report["level"] == "overlay")
    unshare = shutil.which("unshare")
    possible = bool(unshare) and subprocess.run([unshare, "-Urm", "true"], check=False).returncode == 0
    assert works or not possible, report["why"]
    return works


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, overlay_works: bool) -> str:
    require(request.param)
    if request.param == "overlay" and not overlay_works:
        pytest.skip("this kernel gives this user no namespaces")
    return str(request.param)


def state(folder: Path) -> dict[str, object]:
    """Return what a program could change below a folder."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        seen = path.lstat()
        text = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        names = [] if path.is_symlink() else os.listxattr(path)
        key = (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_nlink)
        found[str(path)] = (key, text, names)
    return found


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "real"
    for name in ("folder", "empty", "inner"):
        (folder / name).mkdir(parents=True)
    (folder / "file").write_text("what was there")
    (folder / "folder" / "inner").write_text("inner")
    (folder / "latest").symlink_to(folder / "folder")
    with contextlib.suppress(OSError):
        os.setxattr(folder / "file", "user.there", b"x")
    for name in ("pipe", "full"):
        os.mkfifo(folder / name)
    return folder


def test_nothing_real_is_changed(  # noqa: PLR0915 - what is attacked has to be there
    level: str, victim: Path, tmp_path: Path
) -> None:
    received: list[bytes] = []
    abstract = f"vramtop-test-{os.getpid()}-{level}"
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    full = os.open(victim / "full", os.O_RDWR | os.O_NONBLOCK)
    os.write(full, b"kept")
    servers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    os.chdir(victim)  # a socket's path is short
    servers[0].bind("socket")
    datagrams.bind("gram")
    servers[1].bind(f"\0{abstract}")
    os.chdir(tmp_path)

    def listen(server: socket.socket) -> None:
        server.listen()
        with contextlib.suppress(OSError):
            while True:
                received.append(server.accept()[0].recv(9))

    threads = [threading.Thread(target=listen, args=(server,)) for server in servers]
    shared = Path(f"/dev/shm/vramtop-test-{os.getpid()}-{level}")  # noqa: S108
    shared.write_text("what was there")
    staged = Path(f"{shared}-folder")
    staged.mkdir()
    (staged / "file").write_text("what was there")
    pipe = os.open(victim / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    outsider = subprocess.Popen(["/bin/sleep", "100"])
    for thread in threads:
        thread.start()
    limits = resource.prlimit(outsider.pid, resource.RLIMIT_CPU)
    null, before = Path("/dev/null").stat().st_mode, state(victim)
    names = {"V": str(victim), "SHM": shared.name, "ABSTRACT": abstract, "PID": outsider.pid, "LEVEL": level}
    names |= {"MQ": f"/vramtop-test-{os.getpid()}"}
    text = f"""
import ctypes, fcntl, mmap, posix, resource, shutil, socket, sqlite3, subprocess, threading, traceback
libc = ctypes.CDLL(None)
globals().update({names!r})
T = os.environ['TMPDIR']
for name, attack in {ATTACKS!r}.items():
    os.chdir(T)
    try:
        exec(attack)
    except Exception as error:
        print(name, type(error).__name__, error)
print('attacked')
"""
    try:
        output, report = run(python(text), tmp_path, tmp_path, level=level)
        assert output.endswith("attacked\n"), output
        assert report["level"] == level
        assert state(victim) == before, output
        assert Path("/dev/null").stat().st_mode == null
        assert shared.read_text() == "what was there"
        assert outsider.poll() is None
        assert not received
        assert not os.read(pipe, 9)
        assert os.read(full, 9) == b"kept"
        assert (staged / "file").read_text() == "what was there"
        assert not Path(f"{shared}-left").exists()
        assert resource.prlimit(outsider.pid, resource.RLIMIT_CPU) == limits
        with pytest.raises(BlockingIOError):
            datagrams.recv(9)
    finally:
        outsider.kill()
        outsider.wait()
        shared.unlink()
        shutil.rmtree(staged)
        datagrams.close()
        os.close(full)
        os.close(pipe)
        for server in servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        for thread in threads:
            thread.join()


OWN_FILES = """
import glob, io, json, logging, pathlib, shutil, sqlite3, tarfile, tempfile
sys.dont_write_bytecode = True
from os import rename as kept_rename
Path = pathlib.Path
def refused(kind, function, *args):
    try: function(*args)
    except kind as error: return error
    raise AssertionError(function, args)
os.makedirs("out/deep"); open("out/a.txt", "w").write("a"); os.rename("out/a.txt", "out/b.txt")
assert glob.glob("out/*.txt") == ["out/b.txt"] and {e.name for e in os.scandir("out")} == {"b.txt", "deep"}
os.symlink("out", "latest"); open("latest/c.txt", "w").write("c"); assert open("out/c.txt").read() == "c"
assert Path("latest").resolve() == Path("out").absolute() and os.readlink("latest") == "out"
os.symlink(os.path.abspath("out"), "absolute"); open("absolute/d.txt", "a").write("d"); os.remove("absolute")
assert os.path.realpath("latest/d.txt") == os.path.join(os.getcwd(), "out", "d.txt")
assert refused(FileExistsError, os.mkdir, "folder").filename == "folder"
assert refused(FileNotFoundError, open, "out/none").filename == "out/none"
assert refused(FileNotFoundError, open, "none/none", "w").filename == "none/none"
refused(OSError, os.rmdir, "folder"); refused(OSError, os.rmdir, "out"); refused(FileExistsError, open, "file", "x")
refused(IsADirectoryError, os.unlink, "folder"); refused(OSError, os.rename, "out", "folder")
assert open("folder/inner").name == "folder/inner" and not os.path.islink("folder")
assert [(each.name, each.path, each.is_dir(), each.is_file(), each.is_symlink(), each.stat().st_size > 0)
        for each in sorted(os.scandir("."), key=str) if each.name in ("file", "folder", "latest")] == [
    ("file", "./file", False, True, False, True), ("folder", "./folder", True, False, False, True),
    ("latest", "./latest", True, False, True, True)]
assert [(base, sorted(names), sorted(files)) for base, names, files in os.walk("out", topdown=False)] == [
    ("out/deep", [], []), ("out", ["deep"], ["b.txt", "c.txt", "d.txt"])]
assert sorted(map(str, Path("folder").rglob("*"))) == ["folder/inner", "folder/within", "folder/within/deep"]
assert {"folder", "out"} <= {each.name for each in Path(".").iterdir() if each.is_dir()}
shutil.copytree("folder", "copied"); assert open("copied/within/deep").read() == "deep"
open("folder/within/deep", "a").write("er"); assert Path("folder/within/deep").read_text() == "deeper"
shutil.move("folder/within", "moved"); assert os.listdir("folder") == ["inner"] and os.listdir("moved") == ["deep"]
os.rename("copied/within", "copied/renamed"); assert open("copied/renamed/deep").read() == "deep"
shutil.rmtree("copied"); shutil.rmtree("moved"); assert refused(FileNotFoundError, os.listdir, "moved")
with tempfile.TemporaryDirectory(dir="out") as made, tempfile.NamedTemporaryFile("w", dir="out") as file:
    file.write("x"); file.flush(); shutil.copy2(file.name, made); assert len(os.listdir(made)) == 1
    assert os.path.dirname(file.name) == os.path.abspath("out")
assert sorted(os.listdir("out")) == ["b.txt", "c.txt", "d.txt", "deep"]
f = os.open("out", os.O_RDONLY); g = os.open("e.txt", os.O_WRONLY | os.O_CREAT, dir_fd=f); os.write(g, b"e")
os.close(g)
assert os.stat("e.txt", dir_fd=f).st_size == 1 and "e.txt" in os.listdir(f) and open("out/e.txt").read() == "e"
os.rename("e.txt", "f.txt", src_dir_fd=f, dst_dir_fd=f); os.unlink("f.txt", dir_fd=f); os.close(f)
logging.basicConfig(filename="out/log.txt", level="INFO"); logging.info("said")
assert "said" in open("out/log.txt").read()
json.dump({"a": 1}, Path("out/result.json").open("w"))
assert json.loads(Path("out/result.json").read_bytes()) == {"a": 1}
with tarfile.open("out/all.tar.gz", "w:gz") as tar: tar.add("folder")
with tarfile.open("out/all.tar.gz") as tar: assert "folder/inner" in tar.getnames()
before = os.getcwd(); os.chdir("out"); assert os.getcwd() == before + "/out" == str(Path.cwd())
open("here", "w").close()
os.chdir(".."); assert os.getcwd() == before and os.path.exists("out/here") and os.path.samefile("out", "latest")
Path("module_of_its_own.py").write_text("value = 7"); sys.path.insert(0, before)
import module_of_its_own; assert module_of_its_own.value == 7
if os.fork() == 0: open("out/forked", "w").write("f"); os.rmdir("empty"); os._exit(0)
assert os.wait()[1] == 0 and open("out/forked").read() == "f" and not os.path.exists("empty"); os.mkdir("empty")
open("r.txt", "w").write("r"); kept_rename("r.txt", "s.txt"); os.truncate("s.txt", 0)
assert os.path.getsize("s.txt") == 0
os.link("s.txt", "t.txt"); open("t.txt", "a").write("t"); assert open("s.txt").read() == "t"; os.remove("s.txt")
os.remove("t.txt")
shutil.move("file", os.environ["TMPDIR"] + "/file"); assert not os.path.islink(os.environ["TMPDIR"] + "/file")
open(os.environ["TMPDIR"] + "/file", "a").write("!")
shutil.move(os.environ["TMPDIR"] + "/file", "file"); assert open("file").read() == "what was there!"
os.remove("module_of_its_own.py")
shutil.rmtree("out"); os.makedirs("out"); assert os.listdir("out") == []
shutil.rmtree("folder"); os.makedirs("folder"); assert os.listdir("folder") == []
os.remove("file"); assert not os.path.exists("file"); open("file", "w").write("again")
os.rename(src="file", dst="other"); assert sorted(os.listdir(".")) == sorted(
    ["empty", "folder", "full", "inner", "latest", "other", "out", "pipe"])
c = sqlite3.connect("data.sqlite"); c.execute("create table t (a)"); c.execute("insert into t values (7)"); c.commit()
assert sqlite3.connect("data.sqlite").execute("select a from t").fetchone() == (7,)
os.chmod("other", 0o640); assert os.stat("other").st_mode & 0o777 == 0o640
"""
CHILDS = """
import subprocess
assert subprocess.run(["cat", "other"], capture_output=True).stdout == b"again"
subprocess.run("mkdir out/child; mv other out/child/moved; rm -r folder", shell=True, check=True)
assert open("out/child/moved").read() == "again" and not os.path.exists("folder")
print("done")
"""
SCRATCH = f"""
import os, pathlib, sys
sys.path.insert(0, {str(WATCHED.parents[2])!r})
from worker.rehearsal.scratch import Scratch
del sys.path[0]
scratch = Scratch(pathlib.Path(os.environ["TMPDIR"]).parent)
scratch.install()
"""


@pytest.fixture
def own(victim: Path) -> Path:
    """A folder that is not the program's, with what ``OWN_FILES`` changes in it."""
    (victim / "latest").unlink()
    (victim / "folder" / "within").mkdir()
    (victim / "folder" / "within" / "deep").write_text("deep")
    return victim


def test_a_program_sees_its_own_files_as_it_left_them(overlay_works: bool, own: Path, tmp_path: Path) -> None:
    if not overlay_works:
        pytest.skip("this kernel gives this user no namespaces")
    before = state(own)
    output, report = run(python(OWN_FILES + CHILDS), own, tmp_path)
    assert (output, report["code"]) == ("done\n", 0)
    assert state(own) == before


REFUSED = """
import posix
file = os.path.abspath("inner/x")
for name, more in {"remove": (), "truncate": (0,), "chmod": (0,), "mkdir": (), "open": (os.O_RDWR,)}.items():
    refused(PermissionError, getattr(posix, name), file, *more)
refused(PermissionError, posix.symlink, "/x", file); refused(PermissionError, posix.rename, file, "z")
refused(PermissionError, posix.rename, "other", file); refused(PermissionError, io.FileIO, file, "w")
"""


@pytest.mark.parametrize("kept_by", [*LEVELS[1:], "audit hook"])
def test_its_python_sees_them_without_a_view_as_well(kept_by: str, own: Path, tmp_path: Path) -> None:
    """Run it under the keeper, and as where the kernel has neither Landlock nor notifications."""
    level = kept_by if kept_by in LEVELS else "python"
    require(level)
    before = state(own)
    told = PRELUDE if kept_by in LEVELS else "scratch.refuse()\n"
    more = "" if kept_by in LEVELS else REFUSED
    words = [sys.executable, "-c", f"{SCRATCH}{told}{OWN_FILES}{more}{CHILDS}"]
    output, report = run(words, own, tmp_path, level=level)
    assert (output, report["code"]) == ("done\n", 0)
    assert state(own) == before


@pytest.mark.parametrize("level", LEVELS[1:])
def test_programs_may_use_loaders_and_locks_where_they_have_no_view(level: str, tmp_path: Path) -> None:
    require(level)
    text = """
import multiprocessing, tempfile
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
print("done")
"""
    output, report = run(python(text), tmp_path, tmp_path, level=level)
    assert output == "done\n"
    assert report["code"] == 0


@pytest.mark.parametrize(("words", "code"), [("exit 7", 7), ("kill -SEGV $$", -11), ("kill -9 $$", -9)])
def test_the_exit_code_is_the_programs(level: str, words: str, code: int, tmp_path: Path) -> None:
    output, report = run(["/bin/sh", "-c", f"echo said; {words}"], tmp_path, tmp_path, level=level)
    assert (output, report["code"]) == ("said\n", code)


def test_what_it_looked_at_is_told_of_children_and_native_code_as_well(level: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "listed").mkdir(parents=True)
    for name in ("read", "child", "native", "written", "log", "listed/in"):
        (here / name).write_text("x")
    text = """
import ctypes, subprocess, sqlite3
open("read").read(); os.path.exists("looked for"); os.listdir("listed")
subprocess.run("cat child; test -e 'a child looked for'", shell=True)
ctypes.CDLL(None).open(b"native", 0)
"""
    if level == "overlay":
        text += 'open("log", "a").write("y"); open("written", "w").write("y")\n'
        text += 'open("made", "w").write("z"); open("made").read()\n'
    _, report = run(python(text), here, tmp_path, level=level)
    assert report["complete"]
    told = {str(Path(path).relative_to(here)): (use, was) for path, (use, was) in report["paths"].items()
            if Path(path).is_relative_to(here) and path != str(here)}  # fmt: skip
    use = dict.fromkeys(("read", "child", "native", "listed"), LISTED)
    if level == "overlay":
        use |= {"written": EXISTS, "log": EXISTS}
        assert told.pop("made")[1] == "missing"
    expected = {name: (each, signature(str(here / name), each)) for name, each in use.items()}
    for name in ("looked for", "a child looked for"):
        assert told.pop(name)[1] == "missing"
    assert told == expected


@pytest.mark.parametrize("level", LEVELS[1:])
def test_what_it_looked_at_is_told_where_its_python_has_the_files(level: str, tmp_path: Path) -> None:
    require(level)
    here = tmp_path / "here"
    (here / "listed").mkdir(parents=True)
    for name in ("read", "written", "replaced", "listed/in", "changed", "untouched"):
        (here / name).write_text("x")
    text = """
open("made", "w").write("y"); open("made").read(); open("written", "w").write("y"); os.replace("made", "replaced")
open("read").read(); os.path.exists("looked for"); os.listdir("listed"); open("changed", "a").write("y")
"""
    _, report = run([sys.executable, "-c", SCRATCH + PRELUDE + text], here, tmp_path, level=level)
    told = {path: use for path, (use, _) in report["paths"].items() if Path(path).is_relative_to(tmp_path)}
    told.pop(str(here), None)  # Python looks for modules there
    uses = {"listed": LISTED, "written": EXISTS, "read": USED, "changed": USED, "made": USED, "looked for": USED}
    uses = {name: LISTED if use == USED and name != "looked for" else use for name, use in uses.items()}
    assert told == {str(here / name): use for name, use in uses.items()}


def test_a_program_that_asks_the_network_is_told_so(level: str, tmp_path: Path) -> None:
    text = """
import socket
s = socket.socket(); s.setblocking(False)
try: s.connect(("192.0.2.1", 443))
except OSError: pass
"""
    _, report = run(python(text), tmp_path, tmp_path, level=level)
    assert report["addresses"] == ["192.0.2.1:443"]


def test_a_program_that_is_offline_has_a_loopback_of_its_own(overlay_works: bool, tmp_path: Path) -> None:
    if not overlay_works:
        pytest.skip("this kernel gives this user no namespaces")
    text = """
import socket
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname())
try: socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
except OSError as error: print(type(error).__name__)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [*python(text), str(server.getsockname()[1])]
        assert run(words, tmp_path, tmp_path, offline=True)[0] == "ConnectionRefusedError\n"
        assert run(words, tmp_path, tmp_path)[0] == ""


@pytest.mark.parametrize("level", LEVELS[1:])
def test_offline_is_refused_where_it_cannot_be_kept(level: str, tmp_path: Path) -> None:
    output, report = run(["/bin/true"], tmp_path, tmp_path, level=level, offline=True)
    assert not report
    assert "offline only in a namespace of its own" in output


ENDINGS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGINT", "SIGKILL")


@pytest.mark.parametrize("name", ENDINGS)
def test_everything_ends_with_who_started_it(level: str, name: str, tmp_path: Path) -> None:
    marker = f"vramtop-test-{time.monotonic_ns()}"
    words = ["/bin/sh", "-c", f"setsid sh -c 'while :; do sleep 1; done; : {marker}' & setsid sleep 99 & exec sleep 99"]
    scratch = tmp_path / "scratch"
    (scratch / SHARED).mkdir(parents=True)
    keeper = keeper_of(scratch, tmp_path, words, level=level)
    text = "import signal, subprocess\n"
    text += "for each in (1, 2, 3): signal.signal(each, signal.SIG_DFL)\n"  # a run in the background ignores them
    text += f"subprocess.Popen({keeper!r}, stdin=subprocess.PIPE).wait()"
    starter = subprocess.Popen([sys.executable, "-c", text])

    def running() -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_text(errors="replace")
                if marker in line:
                    found.append(line)
        return found

    until(lambda: any(line.startswith("sh\0") for line in running()))
    starter.send_signal(getattr(signal, name))
    starter.wait()
    until(lambda: not running() and not scratch.exists())


def test_a_path_is_compared_without_being_opened(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 20)
    before = signature(str(file), USED)
    seen = file.stat()
    file.write_bytes(b"y" * 20)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # the same size and time
    assert signature(str(file), USED) != before
    assert signature(str(file), EXISTS) == "file"
    file.unlink()
    assert signature(str(file), USED) == "missing"
    os.mkfifo(file)
    assert signature(str(file), USED).startswith("special")
    file.unlink()
    file.symlink_to("/dev/zero")
    assert signature(str(file), USED).startswith("/dev/zero: special")
    listed = signature(str(tmp_path), LISTED)
    (tmp_path / "another").touch()
    assert signature(str(tmp_path), LISTED) != listed
    assert signature(str(tmp_path), USED).startswith("folder")
