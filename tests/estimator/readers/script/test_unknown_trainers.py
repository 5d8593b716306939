"""Trainers that are not transformers': the defaults of its arguments are not theirs."""

from pathlib import Path

import pytest
from reading import read_script as read

_MODEL = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\n"
_OWN_CLASS = """
class Trainer:
    def __init__(self, config, model):
        self.config, self.model = config, model

    def run(self):
        for batch in self.batches:
            self.model(batch).loss.backward()
"""


@pytest.mark.parametrize(
    "script",
    [
        f"from mingpt.trainer import Trainer\n{_MODEL}trainer = Trainer(None, model, [])\ntrainer.run()",
        f"import mingpt.trainer\n{_MODEL}mingpt.trainer.Trainer(None, model, []).run()",
        f"from composer import Trainer\n{_MODEL}Trainer(model=model, max_duration='1ep').fit()",
    ],
)
def test_a_trainer_of_an_unknown_module_has_no_defaults_of_transformers(tmp_path: Path, script: str) -> None:
    reading = read(tmp_path, script)
    assert reading.value("training.micro_batch") is None
    assert "training.micro_batch" in reading.missing
    assert reading.value("model.id") == "gpt2"
    assert any("Trainer" in warning and "not follow" in warning for warning in reading.warnings)
    assert reading.uncertainties


def test_a_script_s_own_class_is_no_trainer_of_transformers(tmp_path: Path) -> None:
    reading = read(tmp_path, f"{_MODEL}{_OWN_CLASS}\nTrainer(None, model).run()")
    assert reading.value("training.micro_batch") is None
    (tmp_path / "mingpt").mkdir()
    (tmp_path / "mingpt" / "trainer.py").write_text(_OWN_CLASS)
    reading = read(tmp_path, f"from mingpt.trainer import Trainer\n{_MODEL}Trainer(None, model).run()")
    assert reading.value("training.micro_batch") is None
