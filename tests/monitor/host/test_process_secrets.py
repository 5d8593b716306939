"""Secrets on the command lines of real processes: masked wherever vramtop takes them in."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from builders import make_gpu, make_process, make_run, make_snapshot
from secret_corpus import HEX, LETTERS, NAMED, OF_A_FORM, UUID
from waiting import until

from vramtop.estimator.common import secrets
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.attach.saved_answers import run_key
from vramtop.monitor.host.process_directory import ProcessDirectory
from vramtop.monitor.host.process_info import read_process
from vramtop.monitor.sources.recording import RecordingWriter, read_recording

TOKEN = "hf_aB3dE6gHi9KlMn2pQrStUvWxYz012345"  # noqa: S105 - of the form of one
SECRETS = (TOKEN, "hunter22", "pa55w0rd", "correct horse")
ARGUMENTS = (
    *(
        "--model_name_or_path",
        "gpt2",
        "--per_device_train_batch_size",
        "2",
        "--max_length",
        "128",
        "--hub_token",
        TOKEN,
    ),
    *("--wandb_password=hunter22", "--repo", "https://ana:pa55w0rd@host/x", "--passphrase", "correct horse"),
    *("--pad_token", "<pad>", "--run_name", f"run-{TOKEN}", "--lora_token_cfg", TOKEN),
)


@pytest.fixture
def process(start_script):
    return start_script(*ARGUMENTS)


@pytest.fixture(autouse=True)
def _masked() -> Iterator[None]:
    yield
    secrets._shown[0] = False


def assert_masked(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text], text


def test_the_facts_of_a_process_have_no_secrets(process) -> None:
    command = ProcessDirectory().describe(process.pid).command or ""
    assert_masked(command)
    assert (
        "--hub_token *** --wandb_password=*** --repo https://ana:***@host/x --passphrase *** --pad_token <pad>"
        in command
    )
    info = read_process(process.pid)
    assert_masked(info.command_line)
    assert TOKEN in info.argv  # the readers need what the program was started with
    secrets.show_secrets()
    assert TOKEN in (ProcessDirectory().describe(process.pid).command or "")


def test_no_form_of_a_secret_is_shown_of_a_process(start_python) -> None:
    texts = [text.replace("SECRET", "hunter22") for text, _ in NAMED] + list(OF_A_FORM)
    started = start_python("input()", *texts)
    until(lambda: len(psutil.Process(started.pid).cmdline()) > len(texts))
    shown = ProcessDirectory().describe(started.pid).command or ""
    assert not [secret for secret in ("hunter22", LETTERS[:20], HEX * 2, UUID) if secret in shown], shown


def test_a_title_that_a_process_gives_itself_is_masked(start_python) -> None:
    code = (
        "import ctypes, time\n"
        "fields = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
        f"title = 'trainer: epoch 3 --api_key {TOKEN}\\x1b[0mzz'.encode()\n"  # an escape sequence hides no secret
        "ctypes.memset(int(fields[45]), 0, int(fields[46]) - int(fields[45]))\n"
        "ctypes.memmove(int(fields[45]), title, len(title))\n"
        "print(flush=True)\n"
        "time.sleep(600)\n"
    )
    titled = start_python(code)
    titled.stdout.readline()
    facts = ProcessDirectory().describe(titled.pid)
    assert (facts.command or "").startswith("trainer: epoch 3 --api_key ***")
    assert TOKEN[:8] not in f"{facts.command} {facts.name}"


def test_a_run_that_is_read_has_no_secrets_in_what_is_shown_of_it(process) -> None:
    attachment = read_run(process.pid)
    assert_masked(json.dumps(secrets.displayed_data(attachment.to_json())))
    assert_masked(attachment.command)
    assert attachment.reading.value("model.id") == "gpt2"
    assert run_key(replace(attachment, command=f"python t.py --hub_token {TOKEN}")) == run_key(
        replace(attachment, command="python t.py --hub_token hf_another")
    )


def test_recordings_never_have_secrets(tmp_path: Path) -> None:
    secrets.show_secrets()
    held = make_process(7, 1, command=f"python train.py --hub_token {TOKEN} --password hunter22", name=f"x {TOKEN}")
    plain = make_process(8, 1)
    job = Job(name=f"run {TOKEN}", model=ModelSpec(id="https://ana:pa55w0rd@host/x"))
    watched = (make_run(job, 7),)
    snapshot = make_snapshot([make_gpu(0, [held, plain])], watched=watched, pending=(job, Job(name="plain")))
    path = tmp_path / "r.jsonl.gz"
    with RecordingWriter(path) as writer:
        writer.write(snapshot)
    assert_masked(gzip.decompress(path.read_bytes()).decode())
    (read,) = read_recording(path)
    first, second = read.gpus[0].processes or ()
    assert {first.command, second.command} == {"python train.py --hub_token *** --password ***", plain.command}
    assert [each.name for each in read.pending] == ["run ***", "plain"]


def test_an_old_recording_is_played_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = make_process(7, 1, command=f"python train.py --hub_token {TOKEN}")
    with monkeypatch.context() as before, RecordingWriter(tmp_path / "r.jsonl.gz") as writer:
        before.setattr("vramtop.monitor.sources.recording.mask_snapshot", lambda snapshot: snapshot)
        writer.write(make_snapshot([make_gpu(0, [held])]))
    secrets.show_secrets()
    (read,) = read_recording(tmp_path / "r.jsonl.gz")
    (process,) = read.gpus[0].processes or ()
    assert process.command == "python train.py --hub_token ***"
