"""Nothing leaves the machine in a rehearsal: a server on this one gets what reads, and nothing that writes."""

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from local_server import LocalServer
from rehearsed import rehearse, trains
from slow_cases import quick_every

pytest.importorskip("torch")


def steps_after(text: str) -> str:
    return trains("net(torch.ones(2, 64, device=dev)).sum().backward()", before=text)


class Server(LocalServer):
    """Keeps requests as ``GET /path``; a hub's questions about repositories get 404, as they do not exist."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        super().__init__(self.answer)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(f"{request.command} {request.path}")
        body = b'{"found": true}'
        request.send_response(404 if request.path.startswith(("/api/", "/me/")) else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


STANDARD = """
import http.client, json, sys, urllib.error, urllib.parse, urllib.request
address = sys.argv[1]
assert json.load(urllib.request.urlopen(f"{address}/urllib")) == {"found": True}
try:
    urllib.request.urlopen(urllib.request.Request(f"{address}/urllib", data=b"x" * 100_000))
    raise SystemExit("sent")
except urllib.error.URLError:
    pass
connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc)
for method in ("GET", "PUT", "DELETE", "GET"):
    try:
        connection.request(method, "/client", b"x")
        assert method == "GET" and connection.getresponse().read() == b'{"found": true}', method
    except ConnectionError:
        connection.close()
"""
REQUESTS = """
import sys, requests
address = sys.argv[1]
with requests.Session() as session:
    assert session.get(f"{address}/requests").json() == {"found": True}
    for url in (f"{address}/requests", "https://hooks.example.invalid/secret"):
        try:
            session.post(url, data=iter([b"x"]))
            raise SystemExit("sent")
        except requests.ConnectionError:
            pass
    assert session.get(f"{address}/requests").json() == {"found": True}
"""
HTTPX = """
import asyncio, sys, {name} as client_of
address = sys.argv[1]
with client_of.Client() as client:
    assert client.get(f"{{address}}/httpx").json() == {{"found": True}}
    for method, url in (("POST", f"{{address}}/httpx"), ("PATCH", "https://hooks.example.invalid/")):
        try:
            client.request(method, url, json={{}})
            raise SystemExit("sent")
        except client_of.ConnectError:
            pass
async def run():
    async with client_of.AsyncClient() as client:
        assert (await client.get(f"{{address}}/httpx")).json() == {{"found": True}}
        try:
            await client.delete(f"{{address}}/httpx")
            raise SystemExit("sent")
        except client_of.ConnectError:
            pass
asyncio.run(run())
"""
AIOHTTP = """
import asyncio, sys, aiohttp
address = sys.argv[1]
async def ask(session, method, url, **options):
    async with session.request(method, url, **options) as answer:
        return answer.status, await answer.json(content_type=None)
async def run():
    async with aiohttp.ClientSession() as session:
        assert await ask(session, "GET", f"{address}/aiohttp") == (200, {"found": True})
        for method, url in (("POST", f"{address}/aiohttp"), ("PATCH", "https://hooks.example.invalid/")):
            try:
                await ask(session, method, url)
                raise SystemExit("sent")
            except aiohttp.ClientConnectionError:
                pass
        assert await ask(session, "GET", f"{address}/aiohttp") == (200, {"found": True})
asyncio.run(run())
"""


@pytest.mark.parametrize(
    ("client", "text", "not_sent"),
    quick_every(
        2,
        [
            ("http", STANDARD, ["POST to 127.0.0.1", "PUT to 127.0.0.1", "DELETE to 127.0.0.1"]),
            ("requests", REQUESTS, ["POST to 127.0.0.1", "POST to hooks.example.invalid"]),
            *(
                (
                    name,
                    HTTPX.format(name=name),
                    ["POST to 127.0.0.1", "PATCH to hooks.example.invalid", "DELETE to 127.0.0.1"],
                )
                for name in ("httpx", "httpx2")
            ),
            ("aiohttp", AIOHTTP, ["POST to 127.0.0.1", "PATCH to hooks.example.invalid"]),
        ],
    ),
)
def test_a_request_that_writes_fails_to_connect_and_is_told(program, server, client, text, not_sent) -> None:
    pytest.importorskip(client)
    found = rehearse([sys.executable, program(steps_after(text)), server.address])
    assert found.warnings == tuple(f"a {each} was not sent." for each in not_sent)
    assert len(server.requests) == (3 if client == "http" else 2)
    assert {each.partition(" ")[0] for each in server.requests} == {"GET"}


HUB = """
import sys, torch
from huggingface_hub import CommitOperationAdd, HfApi, create_branch, create_repo, create_tag, delete_repo, upload_file
repo = create_repo("me/net", private=True, exist_ok=True)
assert (repo.namespace, repo.repo_id, repo.repo_type) == ("me", "me/net", "model")
assert create_repo(repo_id="me/rows", repo_type="dataset").repo_type == "dataset"
made = upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="me/net", commit_message="one")
assert made.repo_url.repo_id == "me/net" and made.commit_message == "one" and len(made.oid) == 40
api = HfApi()
assert f"{api.whoami()['name']}/net" == create_repo("net").repo_id
assert api.upload_folder(repo_id="me/net", folder_path=".", run_as_future=True).result().commit_url
added = [CommitOperationAdd("x", b"x")]
api.preupload_lfs_files("me/net", additions=added)
assert api.create_commit("me/net", added, commit_message="two").oid
create_branch("me/net", branch="b")
create_tag("me/net", tag="t")
api.update_repo_settings("me/net", private=True)
delete_repo("me/net")
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=1000))
data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 32
args = TrainingArguments("out", per_device_train_batch_size=2, max_steps=2, save_steps=1, report_to=[],
                         push_to_hub=True, hub_strategy="every_save")
trainer = Trainer(model, args, train_dataset=data)
trainer.train()
trainer.push_to_hub()
model.push_to_hub("me/net")
try:
    api.model_info("somebody/else")
except OSError:
    pass
"""


def test_a_trainer_that_pushes_to_the_hub_goes_on_and_pushes_nothing(program, server, monkeypatch) -> None:
    pytest.importorskip("transformers")
    for name, value in {"HF_ENDPOINT": server.address, "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    found = rehearse([sys.executable, program(HUB)])
    assert found.answer.steps[0].steps == 2
    assert "GET /api/models/somebody/else" in server.requests  # what reads is sent
    assert {each.partition(" ")[0] for each in server.requests} <= {"GET", "HEAD"}


LOGGERS = """
import comet_ml, neptune, sys, swanlab, trackio, wandb
wandb.login(key="secret")
assert wandb.init("project", mode="online") == {"project": "project", "mode": "disabled"}
assert swanlab.init(project="p", mode="cloud")["mode"] == "disabled"
assert neptune.init_run(mode="async").mode == "debug"
assert comet_ml.Experiment("key").disabled and comet_ml.Experiment("key", False).disabled
assert trackio.init("p", space_id="me/space") == {"project": "p", "space_id": None, "config": None}
"""
PACKAGES = {
    "wandb": "def init(project=None, mode=None): return {'project': project, 'mode': mode}\ndef login(key): 1 / 0",
    "swanlab": "def init(*, project, mode='cloud'): return {'mode': mode}",
    "neptune": "class Run:\n    def __init__(self, mode=None): self.mode = mode\ninit_run = Run",
    "comet_ml": "class Experiment:\n    def __init__(self, api_key, disabled=False): self.disabled = disabled",
    "trackio": "def init(project, space_id=None, config=None): return locals()",
}
"""The parts of these libraries that start a run, with the arguments that decide where it goes."""


def test_loggers_do_not_upload_whatever_the_program_asks_for(program) -> None:
    for name, text in PACKAGES.items():
        Path(f"{name}.py").write_text(text, encoding="utf-8")
    assert not rehearse([sys.executable, program(steps_after(LOGGERS))]).warnings
