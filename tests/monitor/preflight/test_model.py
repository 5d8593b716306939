"""Model files in folders and caches, and access to a hub, which runs on this machine."""

import json
import struct
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer

from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.model.hub import Refusal, find_token
from vramtop.monitor.preflight.check import CheckContext
from vramtop.monitor.preflight.checks.model import check_model_access, check_model_files
from vramtop.monitor.preflight.model_files import find_model_location, inspect_model_folder
from vramtop.monitor.preflight.prepare import query_hub_access

NAME = "acme/tiny"
SHARDS = ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors")


def safetensors(path: Path, size: int = 64) -> None:
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


def fill(folder: Path, *, shards: bool = True) -> Path:
    """Write the files that ``save_pretrained`` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    if not shards:
        safetensors(folder / "model.safetensors")
        return folder
    for name in SHARDS:
        safetensors(folder / name)
    weights = {f"layer.{number}": name for number, name in enumerate(SHARDS)}
    index = {"metadata": {"total_size": 192}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A Hugging Face cache with one complete model: files are links into ``blobs``."""
    repository = tmp_path / "hub" / "models--acme--tiny"
    blobs = fill(repository / "blobs")
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    return tmp_path / "hub"


def context_for(make_context, cache: Path, name: str = NAME, **environ: str) -> CheckContext:
    return make_context(Job(model=ModelSpec(id=name)), environ={"HF_HUB_CACHE": str(cache), **environ})


def test_a_complete_model_in_the_cache_passes(make_context, cache: Path) -> None:
    context = context_for(make_context, cache)
    found = check_model_files(context)
    assert found.status == "pass"
    assert found.found.startswith("3 shards of weights")
    assert check_model_access(context).status == "skipped"


def test_a_missing_shard_is_a_download_online_and_a_failure_offline(make_context, cache: Path) -> None:
    (cache / "models--acme--tiny" / "blobs" / SHARDS[1]).unlink()
    found = check_model_files(context_for(make_context, cache))
    assert found.status == "warning"
    assert f"1 of 3 shards missing: {SHARDS[1]}" in found.found
    assert found.advice == "download it before: hf download acme/tiny"
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        offline = check_model_files(context_for(make_context, cache, **{variable: "1"}))
        assert (offline.status, variable in offline.found) == ("failure", True)
    assert check_model_files(context_for(make_context, cache, HF_HUB_OFFLINE="0")).status == "warning"


def test_a_truncated_shard_is_incomplete(make_context, cache: Path) -> None:
    blob = cache / "models--acme--tiny" / "blobs" / SHARDS[2]
    blob.write_bytes(blob.read_bytes()[:-10])
    found = check_model_files(context_for(make_context, cache, HF_HUB_OFFLINE="1"))
    assert found.status == "failure"
    assert f"not whole: {SHARDS[2]} (" in found.found


@pytest.mark.parametrize("content", [b"", b"{}", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"])
def test_invalid_safetensors_files_are_reported(tmp_path: Path, content: bytes) -> None:
    folder = fill(tmp_path / "model", shards=False)
    (folder / "model.safetensors").write_bytes(content)
    assert not inspect_model_folder(folder).complete


def test_a_local_model_folder(make_context, tmp_path: Path) -> None:
    folder = fill(tmp_path / "mine", shards=False)
    job = Job(model=ModelSpec(id=str(folder)))
    assert check_model_files(make_context(job)).status == "pass"
    assert check_model_access(make_context(job)).status == "skipped"
    (folder / "tokenizer.json").unlink()
    assert check_model_files(make_context(job)).status == "warning"
    (folder / "model.safetensors").unlink()
    lacks = check_model_files(make_context(job))
    assert (lacks.status, "there are no weights" in lacks.found) == ("failure", True)
    (folder / "config.json").unlink()
    assert "config.json is missing" in check_model_files(make_context(job)).found
    gone = check_model_files(make_context(Job(model=ModelSpec(id=str(tmp_path / "gone")))))
    assert (gone.status, "no such folder" in gone.found) == ("failure", True)


def test_an_invalid_index_is_reported(make_context, tmp_path: Path) -> None:
    folder = fill(tmp_path / "mine")
    for text in ("[]", "not json", '{"weight_map": 3}'):
        (folder / "model.safetensors.index.json").write_text(text)
        found = inspect_model_folder(folder)
        assert (found.complete, found.broken) == (False, ("model.safetensors.index.json (no index of shards)",))


def test_litgpt_needs_its_own_file_and_torchtitan_none(make_context, tmp_path: Path) -> None:
    folder = fill(tmp_path / "mine", shards=False)
    (folder / "model.safetensors").rename(folder / "lit_model.pth")
    litgpt = Job(model=ModelSpec(id=str(folder)), training=Training(framework="litgpt"))
    assert check_model_files(make_context(litgpt)).status == "pass"
    titan = Job(model=ModelSpec(id=NAME), training=Training(framework="torchtitan"))
    assert check_model_files(make_context(titan)).status == "skipped"


def test_a_job_without_a_named_model_needs_none(make_context) -> None:
    for spec in (ModelSpec(config={"model_type": "llama"}), ModelSpec(id="my.models:build")):
        assert check_model_files(make_context(Job(model=spec))).status == "skipped"


def test_a_built_in_name_is_resolved_to_its_hub_id(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path)}

    def hub_id(name: str) -> str | None:
        place = find_model_location(Job(model=ModelSpec(id=name)), environ)
        return place.hub_id if place else None

    assert hub_id("llama-3.1-8b") == "meta-llama/Llama-3.1-8B"
    assert hub_id("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    assert hub_id("gpt2") == "openai-community/gpt2"
    fill(tmp_path / "models--gpt2" / "snapshots" / "1", shards=False)
    (tmp_path / "models--gpt2" / "refs").mkdir()
    (tmp_path / "models--gpt2" / "refs" / "main").write_text("1")
    assert hub_id("gpt2") == "gpt2"


def test_a_disk_too_small_for_the_download_is_a_failure(make_context, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("vramtop.monitor.preflight.checks.model.free_bytes", lambda path: 10 * 2**30)
    found = check_model_files(context_for(make_context, tmp_path / "hub"))  # 8 billion parameters
    assert found.status == "failure"
    assert "about 15.0 GiB need to be downloaded" in found.found


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Callable[..., tuple[str, list[Any]]]:
    """Return a function that starts a hub with a fixed answer; it returns the address and the list of requests."""

    def start(status: int, **headers: str) -> tuple[str, list[Any]]:
        seen: list[Any] = []

        def answer(asked: BaseHTTPRequestHandler) -> None:
            seen.append((asked.path, asked.headers.get("Authorization")))
            asked.send_response(status)
            for name, value in headers.items():
                asked.send_header(name.replace("_", "-"), value)
            asked.end_headers()

        server = LocalServer(answer)
        request.addfinalizer(server.stop)
        return server.address, seen

    return start


@pytest.mark.parametrize(
    ("status", "code", "token", "answer", "words"),
    [
        (200, "", None, "open", "gives it"),
        (307, "", "hf_secret", "open", "gives it"),
        (404, "EntryNotFound", None, "open", "gives it"),
        (401, "GatedRepo", None, "gated", "and there is no token"),
        (403, "GatedRepo", "hf_secret", "gated", "the account of HF_TOKEN is not"),
        (401, "RepoNotFound", None, "absent", "it may be private, and there is no token"),
        (404, "RepoNotFound", "hf_secret", "absent", "HF_TOKEN may not see it"),
        (401, "", "hf_secret", "refused", "rejects the token of HF_TOKEN (401)"),
        (401, "", None, "refused", "requires a token (401)"),
        (503, "", None, "unreachable", "answered 503"),
    ],
)
def test_answers_of_the_hub(hub, status: int, code: str, token: str | None, answer: str, words: str) -> None:
    address, seen = hub(status, **({"X_Error_Code": code} if code else {}), Location="http://127.0.0.1:9/elsewhere")
    environ = {"HF_ENDPOINT": address, "HF_HOME": "/nowhere", **({"HF_TOKEN": token} if token else {})}
    access = query_hub_access(NAME, environ)
    assert access.answer == answer
    assert words in access.message
    assert "hf_secret" not in access.message
    assert seen == [("/acme/tiny/resolve/main/config.json", f"Bearer {token}" if token else None)]


def test_an_unreachable_hub_and_offline_mode(hub) -> None:
    gone = query_hub_access(NAME, {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nowhere"})
    assert (gone.answer, gone.message.startswith("127.0.0.1 does not answer")) == ("unreachable", True)
    assert query_hub_access(NAME, {"HF_ENDPOINT": "file:///etc", "HF_HOME": "/nowhere"}).answer == "unreachable"
    address, seen = hub(200)
    assert query_hub_access(NAME, {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "1"}).answer == "offline"
    assert seen == []


def test_sources_of_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_file\n")
    home = {"HF_HOME": str(tmp_path)}
    assert find_token({**home, "HF_TOKEN": "hf_set"}) == ("hf_set", "HF_TOKEN")
    assert find_token(home) == ("hf_file", str(tmp_path / "token"))
    assert find_token({**home, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}) is None
    assert find_token({"HF_TOKEN_PATH": str(tmp_path / "absent")}) is None
    cache = tmp_path / ".cache" / "huggingface"
    cache.mkdir(parents=True)
    (cache / "token").write_text("hf_login")
    assert find_token({"HOME": str(tmp_path)}) == ("hf_login", str(cache / "token"))


@pytest.mark.parametrize(
    ("answer", "token", "status", "advice"),
    [
        ("open", "", "pass", None),
        ("gated", "", "failure", "hf auth login"),
        ("gated", "hf_x", "failure", "with that account"),
        ("refused", "hf_x", "failure", "make a new token"),
        ("absent", "", "failure", "correct model.id"),
        ("unreachable", "", "warning", "download the model beforehand"),
        ("offline", "", "skipped", None),
    ],
)
def test_access_to_a_model_that_is_not_downloaded(make_context, tmp_path, answer, token, status, advice) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path), "HF_HOME": str(tmp_path), "HF_TOKEN": token}
    context = make_context(Job(model=ModelSpec(id=NAME)), environ=environ, hub_access=lambda: Refusal(answer, ""))
    found = check_model_access(context)
    assert found.status == status
    assert advice is None or advice in (found.advice or "")
    assert found.unknown == (answer == "unreachable")
