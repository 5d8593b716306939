"""User models and code that comes with a model run in the worker, and only on request."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.exact_parameter_count import exact_inventory
from vramtop.estimator.trace.worker_pool import POOL

pytestmark = pytest.mark.usefixtures("own_cache")

MODELS = """
import torch
from torch import nn
import print_something


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.hidden = nn.Linear(64, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.zeros(32, 32), persistent=False)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.hidden(self.embedding(input_ids)))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class Silent(Tiny):
    def forward(self, input_ids, labels=None):
        return {"logits": self.hidden(self.embedding(input_ids))}


class Faulty(Tiny):
    def forward(self, input_ids, labels=None):
        return self.hidden(input_ids)


class Deciding(Tiny):
    def forward(self, input_ids, labels=None):
        if input_ids.sum() > 3:
            return super().forward(input_ids, labels)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**LLAMA))


def number():
    return 3


def leave():
    raise SystemExit("over")


def divide():
    return 1 / 0


LLAMA = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}
"""
TINY = 1000 * 64 + 64 * 64 + 64
PYTHON = sys.executable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's modules; one for all tests, since a worker imports a module once."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "own_models.py").write_text(MODELS)
    (folder / "print_something.py").write_text("print('a line that is no answer')\n")
    (folder / "syntax.py").write_text("def model(:\n")
    return folder


def job_of(name: str, folder: Path, **changes: Any) -> Job:
    job = Job(model=ModelSpec(id=name, code_folder=str(folder)), training=Training(sequence_length=128))
    return with_changes(job, {key.replace("__", "."): value for key, value in changes.items()})


def budget_of(name: str, folder: Path, method: MethodChoice, **changes: Any) -> Budget:
    return estimate(job_of(name, folder, **changes), method=method, python=PYTHON)


def test_a_plain_module_is_traced(folder: Path, share_user_code: None) -> None:
    budget = budget_of("own_models:Tiny", folder, "auto", training__precision="fp32")

    assert (budget.method, budget.model.parameters, budget.model.count) == ("traced", TINY, "exact")
    assert budget.phases[0].components.weights == pytest.approx(4 * TINY + 4096, abs=1024)  # and the buffer
    assert budget.peak.components.optimizer == pytest.approx(8 * TINY, abs=4096)
    assert "own_models" not in sys.modules


def test_a_model_with_a_config_is_estimated_by_the_formula_once_it_is_built(folder, share_user_code) -> None:
    exact = budget_of("own_models:llama", folder, "exact", training__precision="bf16")
    traced = budget_of("own_models:llama", folder, "traced", training__precision="bf16")

    assert exact.method == "exact"
    assert exact.model == replace(traced.model, max_positions=exact.model.max_positions)
    assert exact.peak.allocated_bytes == pytest.approx(traced.peak.allocated_bytes, rel=0.03)
    adapted = budget_of("own_models:llama", folder, "exact", lora__targets=["q_proj"])
    assert adapted.model.trainable_parameters == 2 * 16 * (64 + 64)


def test_what_a_method_cannot_estimate_is_reported(folder: Path, share_user_code: None) -> None:
    with pytest.raises(CannotTellError, match=r"Tiny is Python code.*use --method traced or --method exact"):
        budget_of("own_models:Tiny", folder, "formula")
    with pytest.raises(CannotTellError, match="68,160 parameters were counted, but it has no Hugging Face config"):
        budget_of("own_models:Tiny", folder, "exact")
    with pytest.raises(CannotTellError, match="gradient_checkpointing_enable"):
        budget_of("own_models:Tiny", folder, "traced", training__activation_checkpointing="full")


def line_of(text: str) -> int:
    return MODELS.split(text, maxsplit=1)[0].count("\n") + 1


def test_errors_of_user_code_are_reported_in_one_sentence(folder: Path, share_user_code: None) -> None:
    errors = {
        "own_models:divide": f"ZeroDivisionError: division by zero (own_models.py:{line_of('return 1 / 0')})",
        "own_models:Faulty": f"(own_models.py:{line_of('return self.hidden(input_ids)')})",
        "own_models:leave": "ended before an optimizer had stepped: over",
        "own_models:Silent": "did not return a loss",
        "own_models:absent": "cannot import name 'absent'",
        "not_there:model": "needs not_there",
        "syntax:model": "SyntaxError",
    }
    for name, words in errors.items():
        with pytest.raises(CannotTellError) as raised:
            budget_of(name, folder, "traced")
        assert words in raised.value.message
        assert "Traceback" not in raised.value.message
        assert "\n" not in raised.value.message


def test_a_job_files_code_is_in_the_folder_of_the_job_file(folder, monkeypatch, share_user_code) -> None:
    (folder / "job.toml").write_text('[model]\nid = "own_models:Tiny"\n[training]\nsequence_length = 64\n')
    monkeypatch.chdir("/")

    job = load_job(folder / "job.toml")
    assert job.model.code_folder == str(folder.resolve())
    assert exact_inventory(resolve_model(job.model), "causal-lm", python=PYTHON).parameters == TINY


def test_answers_about_user_code_are_not_cached(folder, monkeypatch, share_user_code) -> None:
    model = resolve_model(job_of("own_models:Tiny", folder).model)
    before = exact_inventory(model, "causal-lm", python=PYTHON)
    monkeypatch.setattr(POOL, "request", lambda *_, **__: {"groups": "of another answer"})

    assert before.tied == (("embedding.weight", "head.weight"),)
    assert [(b.name, b.total_bytes) for b in before.buffers] == [("positions", 4096)]
    with pytest.raises(CannotTellError, match="cannot read the worker"):
        exact_inventory(model, "causal-lm", python=PYTHON)


@pytest.mark.slow
def test_changed_code_is_counted_again(tmp_path: Path) -> None:
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "print_something.py").touch()
    spec = job_of("own_models:Tiny", tmp_path).model
    before = exact_inventory(resolve_model(spec), "causal-lm", python=PYTHON)
    (tmp_path / "own_models.py").write_text(MODELS.replace("1000, 64", "2000, 64"))

    after = exact_inventory(resolve_model(spec), "causal-lm", python=PYTHON)
    assert after.parameters - before.parameters == 1000 * 64


CONFIGURATION = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "someones-own"

    def __init__(self, width=64, words=1000, **others):
        self.width, self.words = width, words
        super().__init__(**others)
"""
MODELING = """
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_own import OwnConfig

Path({ran!r}).touch()


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.words, config.width)
        self.head = nn.Linear(config.width, config.words, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return CausalLMOutput(loss=loss, logits=logits)
"""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder with its code, which creates a file when it runs."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    place = tmp_path / "someones"
    place.mkdir()
    (place / "configuration_own.py").write_text(CONFIGURATION)
    (place / "modeling_own.py").write_text(MODELING.format(ran=str(tmp_path / "ran")))
    names = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config = {"model_type": "someones-own", "width": 64, "words": 1000, "torch_dtype": "bfloat16", "auto_map": names}
    (place / "config.json").write_text(json.dumps(config))
    return place


def test_a_models_own_code_runs_when_it_is_trusted(remote: Path) -> None:
    job = Job(model=ModelSpec(id=str(remote), trust_remote_code=True), training=Training(precision="fp32"))

    budget = estimate(job, method="auto", python=PYTHON)
    assert (budget.method, budget.model.parameters) == ("traced", 2 * 64 * 1000)
    assert budget.phases[0].components.weights == 4 * 2 * 64 * 1000  # not in the type of the config
    assert (remote.parent / "ran").exists()


@pytest.mark.slow
def test_errors_of_code_of_a_model_are_reported_in_one_sentence(remote: Path) -> None:
    job = Job(model=ModelSpec(id=str(remote), trust_remote_code=True))
    with pytest.raises(CannotTellError, match="its auto_map has no AutoModelForMaskedLM"):
        estimate(with_changes(job, {"model.task": "masked-lm"}), method="exact", python=PYTHON)
    (remote / "modeling_own.py").write_text("raise ValueError('not today')\n")
    with pytest.raises(CannotTellError, match=r"the code in .* fails: ValueError: not today"):
        estimate(job, method="exact", python=PYTHON)


@pytest.mark.parametrize("method", ["formula", "exact", "auto"])
def test_a_models_own_code_does_not_run_untrusted(remote: Path, method: MethodChoice) -> None:
    with pytest.raises(VramtopError, match="--trust-remote-code"):
        estimate(Job(model=ModelSpec(id=str(remote))), method=method, python=PYTHON)
    assert not (remote.parent / "ran").exists()


def test_a_request_without_code_runs_none(tmp_path, ask_worker) -> None:
    (tmp_path / "touching.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    config = {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "touching.M"}, "hidden_size": 64}
    ask_worker({"op": "inventory", "config": config, "task": "causal-lm"})
    assert not (tmp_path / "ran").exists()


def test_user_code_hides_no_module_of_the_standard_library(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the user names is theirs, whatever its name; what it imports beside it comes before packages."""
    (in_folder / "json.py").write_text(f"open({str(in_folder / 'ran')!r}, 'w').close()\n")
    (in_folder / "msgspec.py").write_text("SIZE = 7\n")
    (in_folder / "size.txt").write_text("9")
    (in_folder / "symtable.py").write_text(
        "import json, subprocess, sys, torch\n"
        "json.dumps({})\n"
        "from msgspec import SIZE\n"
        "def model():\n"
        "    subprocess.run([sys.executable, '-c', 'import json; json.dumps({})'], check=True)\n"
        "    return torch.nn.Linear(SIZE, int(open('size.txt').read()), bias=False)\n"
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)

    with pytest.raises(CannotTellError, match="63 parameters were counted"):
        budget_of("symtable:model", in_folder, "exact")
    if sys.version_info >= (3, 11):  # before, ``python -c`` of the user's own code takes the current folder
        assert not (in_folder / "ran").exists()


def test_a_user_module_with_the_name_of_one_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def model():\n    return 1\n")
    with pytest.raises(CannotTellError, match=r"json\.py: a module called json cannot be imported here"):
        budget_of("json:model", tmp_path, "exact")
