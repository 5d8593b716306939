import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.settings import Training
from vramtop.estimator.model.find_config import built_in_models, find_built_in, hub_cache, resolve_model

CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 64}


def cached(hub: Path, name: str, revision: str, config: dict[str, Any]) -> Path:
    snapshot = hub / f"models--{name.replace('/', '--')}" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot


@pytest.mark.parametrize(
    ("name", "family"),
    [("unsloth/Phi-4", "llama"), ("microsoft/phi-4", "phi3"), ("unsloth/Phi-4-mini-instruct", "phi3")],
)
def test_unsloths_copies_of_phi_have_llamas_layers(name: str, family: str) -> None:
    assert resolve_model(ModelSpec(id=name), environ={}).config["model_type"] == family


def test_cache_is_searched_before_the_built_in_names(tmp_path: Path) -> None:
    cached(tmp_path, "meta-llama/Llama-3.1-8B", "abc", CONFIG)

    model = resolve_model(ModelSpec(id="meta-llama/Llama-3.1-8B"), environ={"HF_HUB_CACHE": str(tmp_path)})

    assert (model.source, model.config) == ("cache", CONFIG)


def test_cache_gives_the_snapshot_of_main(tmp_path: Path) -> None:
    cached(tmp_path, "org/model", "old", {"hidden_size": 1})
    cached(tmp_path, "org/model", "new", {"hidden_size": 2})
    refs = tmp_path / "models--org--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("old")

    model = resolve_model(ModelSpec(id="org/model"), environ={"HF_HUB_CACHE": str(tmp_path)})

    assert model.config == {"hidden_size": 1}


def test_cache_without_main_gives_the_latest_snapshot(tmp_path: Path) -> None:
    os.utime(cached(tmp_path, "org/model", "aaa", {"hidden_size": 1}), (2_000, 2_000))
    os.utime(cached(tmp_path, "org/model", "bbb", {"hidden_size": 2}), (1_000, 1_000))

    model = resolve_model(ModelSpec(id="org/model"), environ={"HF_HUB_CACHE": str(tmp_path)})

    assert model.config == {"hidden_size": 1}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_cache_folder(environ: dict[str, str], expected: str) -> None:
    assert str(hub_cache(environ)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Llama 3.1 8B", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B"),
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B"),
        ("google/gemma-2-9b-it", "google/gemma-2-9b"),
        ("GPT2", "openai-community/gpt2"),
        ("bert-large", "google-bert/bert-large-uncased"),
        ("t5-base", "google-t5/t5-base"),
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B"),
        ("Gemma2-9B", "google/gemma-2-9b"),
        ("/hub/AI-ModelScope/Qwen2___5-7B-Instruct/", "Qwen/Qwen2.5-7B"),
    ],
)
def test_built_in_names_may_be_written_in_several_ways(name: str, expected: str) -> None:
    found = find_built_in(name)

    assert found.id == expected


def test_a_folder_of_another_machine_is_counted_by_its_name() -> None:
    job = Job(model=ModelSpec(id="/data/Qwen3-8B/"), training=Training(micro_batch=1, sequence_length=128))

    model, assumed = resolve_model(job.model, environ={}), estimate(job, method="formula").assumptions

    assert (model.where, model.label) == ("Qwen/Qwen3-8B", "Qwen3-8B")
    assert "/data/Qwen3-8B/ is not on this machine; it is counted as Qwen/Qwen3-8B, by its name." in assumed


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("klue/roberta-large", True),
        ("FacebookAI/roberta-large", False),
        ("roberta-large", False),
        ("unsloth/Llama-3.1-8B", False),
    ],
)
def test_a_model_of_another_publisher_is_counted_by_its_name_with_a_warning(name: str, warned: bool) -> None:
    job = Job(model=ModelSpec(id=name), training=Training(micro_batch=1, sequence_length=128))
    said = f"{name} is not on this machine; it is counted as FacebookAI/roberta-large, by its name."
    assert (said in estimate(job, method="formula").warnings) == warned


def test_built_in_names_lead_to_their_own_models() -> None:
    for model in built_in_models():
        for name in (*model.ids, model.label, *model.names):
            assert find_built_in(name) is model, name


def test_a_model_that_reads_images_is_not_taken_for_its_language_part(tmp_path: Path) -> None:
    for name, text in (
        ("google/gemma-3-4b-it", "gemma-3-4b-text"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b-text"),
    ):
        assert find_built_in(text)
        with pytest.raises(InputError, match=f"{name} is multimodal.*: {text}"):
            resolve_model(ModelSpec(id=name), environ={"HF_HOME": str(tmp_path)})


def test_unknown_model_error_names_the_places_searched_and_similar_models(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        resolve_model(ModelSpec(id="meta-llama/Llama-3.1-8C"), environ={"HF_HOME": str(tmp_path)})

    for words in ("'meta-llama/Llama-3.1-8C'", str(tmp_path / "hub"), "config.json", "did you mean llama-3.1-8b"):
        assert words in caught.value.message


def test_python_code_is_named_and_not_run(tmp_path: Path) -> None:
    found = resolve_model(ModelSpec(id="my_models.big:build", code_folder=str(tmp_path)), environ={})

    assert (found.source, found.config) == ("code", {})
    assert found.code == {"folder": str(tmp_path), "model": "my_models.big:build"}


def test_python_code_may_be_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "my-model.py").write_text("")
    spec = ModelSpec(id="nets/my-model.py:Net.small", code_folder=str(tmp_path))
    assert resolve_model(spec, environ={}).code == {"folder": str(tmp_path / "nets"), "model": "my-model:Net.small"}
    with pytest.raises(InputError, match=r"^nets/other.py:Net: there is no file .*/nets/other.py; give its path"):
        resolve_model(msgspec.structs.replace(spec, id="nets/other.py:Net"), environ={})


def test_code_of_a_model_is_trusted_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own"}')
    spec = ModelSpec(id=str(tmp_path))

    assert resolve_model(spec, environ={}).code is None
    trusted = resolve_model(msgspec.structs.replace(spec, trust_remote_code=True), environ={})
    assert trusted.code == {"folder": str(tmp_path), "remote": True}


def test_no_model_at_all() -> None:
    with pytest.raises(InputError, match="no model given"):
        resolve_model(ModelSpec(), environ={})


def test_broken_configs_are_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text in (b"{", b"[1, 2]", b'{"a": "\xff"}', b'{"a":' * 100_000):
        file.write_bytes(text)
        with pytest.raises(InputError, match=r"config\.json: not a JSON object"):
            resolve_model(ModelSpec(id=str(tmp_path)), environ={})


def test_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        resolve_model(ModelSpec(id=str(tmp_path)), environ={})
    with pytest.raises(InputError, match="no such folder"):
        resolve_model(ModelSpec(id=str(tmp_path / "missing")), environ={})


def test_folder_of_an_adapter_names_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))

    with pytest.raises(InputError, match=r"an adapter, not a model.*org/base"):
        resolve_model(ModelSpec(id=str(tmp_path)), environ={})


def test_output_folder_does_not_hide_a_built_in_model(in_folder: Path) -> None:
    (in_folder / "gpt2").mkdir()

    assert resolve_model(ModelSpec(id="gpt2"), environ={"HF_HOME": str(in_folder)}).source == "built-in"


def test_an_unreadable_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    model = tmp_path / "closed" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    model.parent.chmod(0)
    root = os.geteuid() == 0
    if root:  # whom nothing is closed to
        os.seteuid(65534)
    try:
        with pytest.raises(InputError, match="permission denied"):
            resolve_model(ModelSpec(id=str(model)))
    finally:
        if root:
            os.seteuid(0)
        model.parent.chmod(0o700)


def test_number_of_labels_of_the_job_replaces_that_of_the_config() -> None:
    config = {**CONFIG, "id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}

    assert resolve_model(ModelSpec(config=config, num_labels=7), environ={}).config == {**CONFIG, "num_labels": 7}
