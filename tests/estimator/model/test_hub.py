"""The config.json of a model from a hub on this machine, by huggingface_hub's rules and within its limits."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from local_server import LocalServer

from vramtop.estimator.common.limits import HUB_CONFIG
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.hub import Refusal, download_config
from vramtop.estimator.program.diffusion_models import read_pipeline
from vramtop.tui.cli.main import main

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
CONFIG["intermediate_size"] = 96
COMMIT = "0123456789" * 4
NAME = "acme/tiny-llama"
FILE = f"/{NAME}/resolve/main/config.json"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Hub(LocalServer):
    """A server that answers paths, and notes who asked for what."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, str | None]] = []
        super().__init__(self.answer)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.seen.append((request.path, request.headers.get("Authorization")))
        self.answers.get(request.path, refuses(404, X_Error_Code="RepoNotFound"))(request)


def gives(content: bytes, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        for name, value in {"ETag": '"etag1"', "X-Repo-Commit": COMMIT, **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)

    return answer


def refuses(status: int, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()

    return answer


def drips(head: bytes) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            request.wfile.write(head)
            for _ in range(600):
                request.wfile.write(b" ")
                time.sleep(0.05)

    return answer


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.stop()


@pytest.fixture
def environ(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_secret"}


def test_a_config_is_kept_where_huggingface_hub_finds_it(hub: Hub, environ: dict[str, str], tmp_path: Path) -> None:
    hub.answers = {FILE: gives(json.dumps(CONFIG).encode())}
    assert download_config(NAME, environ) == "127.0.0.1"
    assert hub.seen == [(FILE, "Bearer hf_secret")]
    assert resolve_model(ModelSpec(id=NAME), environ=environ).config == CONFIG
    library = pytest.importorskip("huggingface_hub")
    path = library.try_to_load_from_cache(NAME, "config.json", cache_dir=tmp_path / "hf" / "hub")
    assert json.loads(Path(path).read_text()) == CONFIG
    assert Path(path).parent.name == COMMIT


def test_only_the_host_that_was_asked_gets_the_token(hub: Hub, environ: dict[str, str]) -> None:
    elsewhere = Hub()
    hub.answers = {FILE: refuses(307, Location="/again"), "/again": refuses(302, Location=f"{elsewhere.address}/file")}
    elsewhere.answers = {"/file": gives(json.dumps(CONFIG).encode())}
    assert download_config(NAME, environ) == "127.0.0.1"
    assert [token for _, token in hub.seen] == ["Bearer hf_secret"] * 2
    assert elsewhere.seen == [("/file", None)]
    elsewhere.stop()


def test_a_branch_that_is_there_stays(hub: Hub, environ: dict[str, str], tmp_path: Path) -> None:
    branch = tmp_path / "hf" / "hub" / "models--acme--tiny-llama" / "refs" / "main"
    branch.parent.mkdir(parents=True)
    branch.write_text("of-whole-files")
    hub.answers = {FILE: gives(json.dumps(CONFIG).encode())}
    download_config(NAME, environ)
    assert branch.read_text() == "of-whole-files"
    assert resolve_model(ModelSpec(id=NAME), environ=environ).config == CONFIG


def test_a_pipeline_s_index_and_the_configs_of_its_networks_are_kept(hub, environ, tmp_path) -> None:
    index = {
        "_class_name": "StableDiffusionPipeline",
        "text_encoder": ["transformers", "CLIPTextModel"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "../../evil": ["diffusers", "UNet2DConditionModel"],
    }
    parts = ("text_encoder", "unet", "vae")
    place = f"/{NAME}/resolve/main/"
    hub.answers = {f"{place}{each}/config.json": gives(b"{}", ETag=f'"{each}"') for each in parts}
    hub.answers[FILE] = refuses(404, X_Error_Code="EntryNotFound")
    hub.answers[f"{place}model_index.json"] = gives(json.dumps(index).encode(), ETag='"index"')
    assert download_config(NAME, environ) == "127.0.0.1"
    assert len(hub.seen) == 5
    model = read_pipeline(NAME, environ)
    assert model.trained.place == (NAME, "unet")
    library = pytest.importorskip("huggingface_hub")
    assert library.try_to_load_from_cache(NAME, "unet/config.json", cache_dir=tmp_path / "hf" / "hub")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refuses(401, X_Error_Code="GatedRepo"), "gated", "account of HF_TOKEN is not"),
        (refuses(404, X_Error_Code="RepoNotFound"), "absent", "has no such model"),
        (refuses(503), "unreachable", "answered 503"),
        (gives(b"<html>"), "unreachable", "returned something other than a config.json"),
        (gives(b"[" * 100_000), "unreachable", "returned something other than a config.json"),
        (gives(b"[1]"), "unreachable", "returned something other than a config.json"),
        (gives(b" " * (1 << 25)), "unreachable", "its answer has more than 4 MiB"),
        (gives(b"{", **{"Content-Length": str(10**18)}), "unreachable", "does not answer (the answer ended early)"),
        (refuses(302, Location=FILE), "absent", "has no config.json for it"),
        (refuses(404, X_Error_Code="EntryNotFound"), "absent", "has no config.json for it"),
        (drips(b"HTTP/1.0 200 OK\r\n\r\n"), "unreachable", "its answer took more than 0.5 s"),
        (drips(b""), "unreachable", "its answer took more than 0.5 s"),
    ],
)
def test_what_is_no_config_is_refused_in_time_and_not_kept(answer, kind, words, hub, environ, tmp_path) -> None:
    hub.answers = {FILE: answer}
    found = download_config(NAME, environ, replace(HUB_CONFIG, seconds=0.5 if "took" in words else 30.0))
    assert isinstance(found, Refusal)
    assert found.answer == kind
    assert words in found.message
    assert "hf_secret" not in found.message
    assert not (tmp_path / "hf").exists()


def test_names_of_headers_are_no_paths(hub: Hub, environ: dict[str, str], tmp_path: Path) -> None:
    hub.answers = {FILE: gives(json.dumps(CONFIG).encode(), **{"ETag": '"../../x"', "X-Repo-Commit": "../../../y"})}
    assert download_config(NAME, environ) == "127.0.0.1"
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert not found & {"x", "y"}
    assert resolve_model(ModelSpec(id=NAME), environ=environ).config == CONFIG


def test_offline_nothing_is_asked(hub: Hub, environ: dict[str, str]) -> None:
    found = download_config(NAME, {**environ, "HF_HUB_OFFLINE": "1"})
    assert found == Refusal("offline", "HF_HUB_OFFLINE is set, so vramtop does not query the hub")
    assert download_config(NAME, {**environ, "HF_ENDPOINT": "file:///etc"}) == Refusal(
        "unreachable", "HF_ENDPOINT is not an http address"
    )
    assert hub.seen == []


@pytest.fixture
def command(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return exit code, output and complaint of a command that may fetch."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        code = main([words[0], "--method", "formula", *words[1:]])
        return code, *capsys.readouterr()

    return run


def test_a_command_fetches_once_and_says_so(hub: Hub, command: Callable[..., tuple[int, str, str]]) -> None:
    hub.answers = {FILE: gives(json.dumps(CONFIG).encode())}
    code, said, _ = command("estimate", NAME, "--seq-len", "64")
    assert code == 0
    assert f"The config.json of {NAME} was downloaded from 127.0.0.1" in " ".join(said.split())
    code, said, _ = command("fit", NAME, "--gpu-type", "4090")
    assert (code, "was downloaded" in said) == (0, False)
    assert len(hub.seen) == 1


def test_a_launch_line_names_a_model_too(hub: Hub, command: Callable[..., tuple[int, str, str]]) -> None:
    hub.answers = {FILE: gives(json.dumps(CONFIG).encode())}
    line = ("python", "train.py", "--model_name_or_path", NAME, "--per_device_train_batch_size", "2", "--bf16")
    code, said, complaint = command("estimate", "--set", "training.sequence_length=64", "--", *line)
    assert (code, complaint) == (0, "")
    assert "was downloaded from 127.0.0.1" in " ".join(said.split())


def test_built_in_models_and_folders_are_not_asked_for(hub: Hub, command: Callable[..., tuple[int, str, str]]) -> None:
    assert command("estimate", "meta-llama/Llama-3.1-8B")[0] == 0
    assert hub.seen == []


def test_why_there_is_no_config_is_said(hub: Hub, command: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = command("estimate", "acme/absent")
    assert code == 2
    assert "not in the Hugging Face cache" in complaint
    assert complaint.rstrip().endswith("127.0.0.1 has no such model (or HF_TOKEN may not see it)")


def test_the_setting_turns_it_off(hub, command, monkeypatch) -> None:
    monkeypatch.setenv("VRAMTOP_ESTIMATES_DOWNLOAD", "off")
    assert command("estimate", NAME)[0] == 2
    assert hub.seen == []
