from pathlib import Path

import pytest
from builders import make_attachment

from vramtop.estimator.common.records import replace
from vramtop.estimator.readers.source.evidence import FindingCollector
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.saved_answers import SavedAnswers, run_key, with_saved_answers

DAY = 1_795_000_000.0
"""2026-11-18."""


@pytest.fixture
def answers(tmp_path: Path) -> SavedAnswers:
    return SavedAnswers(tmp_path / "data" / "answers.json", clock=lambda: DAY)


@pytest.fixture
def attachment() -> Attachment:
    collector = FindingCollector()
    collector.record("model.id", "gpt2", "--model on the command line")
    collector.record("training.micro_batch", 2, "sft.yaml: batch")
    collector.record("lora.rank", 8, "sft.yaml: r")
    command = "python train.py --config sft.yaml"
    return make_attachment(reading=collector.build(), cwd=Path("/home/ana/sft"), command=command)


def test_answers_for_a_command_line_are_loaded_the_next_time(answers, attachment):
    run = run_key(attachment)
    answers.save(run, {"training.sequence_length": 4096})
    answers.save(run, {"training.compile": True})
    assert "train.py" not in answers.path.read_text()
    again = with_saved_answers(attachment, SavedAnswers(answers.path))
    assert again.reading.missing == ()
    assert again.reading.job().training.sequence_length == 4096
    assert again.reading.job().training.compile
    assert again.reading.evidence()["training.sequence_length"].startswith("you, on 2026-11-1")


def test_a_correction_takes_precedence_and_names_the_value_that_was_read(answers, attachment):
    answers.save(run_key(attachment), {"training.micro_batch": 4})
    reading = with_saved_answers(attachment, answers).reading
    assert reading.job().training.micro_batch == 4
    assert reading.evidence()["training.micro_batch"].endswith("instead of 2 (sft.yaml: batch)")


@pytest.mark.parametrize("adapters", [None, {"rank": 64, "targets": "all-linear", "quantization": "nf4"}])
def test_adapter_settings_are_saved_as_one_answer(answers, attachment, adapters):
    answers.save(run_key(attachment), {"lora": adapters})
    lora = with_saved_answers(attachment, answers).reading.job().lora
    assert (lora and lora.rank) == (adapters and 64)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"command": "python train.py"}, False),
        ({"cwd": Path("/elsewhere")}, False),
        ({"command": "python train.py --local_rank=3 --config sft.yaml"}, True),
        ({"cwd": Path("/proc/7/root/home/ana/sft")}, True),  # in a container
    ],
)
def test_a_run_is_known_by_its_folder_and_command_line_without_its_rank(attachment, changes, same):
    assert (run_key(replace(attachment, **changes)) == run_key(attachment)) == same


def test_answers_that_no_longer_make_a_job_are_dropped_and_reported(answers, attachment):
    answers.save(run_key(attachment), {"training.no_such_key": 1})
    again = with_saved_answers(attachment, answers)
    assert again.reading == attachment.reading
    assert "are ignored" in again.warnings[-1]


def test_another_model_has_the_run_read_again(answers, attachment):
    answers.save(run_key(attachment), {"model.id": "llama-3.1-8b", "training.sequence_length": 64})
    collector = FindingCollector({"model.id": "llama-3.1-8b"})
    collector.record("model.id", "gpt2", "--model on the command line")
    collector.record("model.config", {"model_type": "gpt2"}, "train.py line 3")
    collector.record("training.micro_batch", 2, "sft.yaml: batch")
    asked: list[object] = []

    def reread(given):
        asked.append(given["model.id"])
        return replace(attachment, reading=collector.build())

    again = with_saved_answers(attachment, answers, reread=reread).reading
    assert asked == ["llama-3.1-8b"]
    assert again.value("model.config") is None
    assert again.missing == ()
    assert again.evidence()["model.id"].endswith("instead of gpt2 (--model on the command line)")
    answers.save(run_key(attachment), {"model.id": "gpt2"})  # the model that was read
    assert with_saved_answers(attachment, answers, reread=reread).reading.value("lora.rank") == 8
    assert asked == ["llama-3.1-8b"]


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"version":1,"runs":{"a":{"answers":{"b":3}}}}'])
def test_a_damaged_file_is_reported_and_renamed_at_the_next_save(answers, attachment, content):
    answers.path.parent.mkdir()
    answers.path.write_bytes(content)
    assert "is damaged" in with_saved_answers(attachment, answers).warnings[-1]
    assert answers.path.read_bytes() == content
    said = answers.save(run_key(attachment), {"training.sequence_length": 512})
    aside = [path for path in answers.path.parent.iterdir() if ".damaged-" in path.name]
    assert [path.read_bytes() for path in aside] == [content]
    assert said is not None
    assert aside[0].name in said
    assert answers.load(run_key(attachment))["training.sequence_length"].value == 512
