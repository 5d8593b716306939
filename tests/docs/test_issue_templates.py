"""The forms for issues have the structure that GitHub asks for, and ask for what a maintainer needs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(path for path in FOLDER.glob("*.yml") if path.name != "config.yml")
ATTRIBUTES = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "multiple", "options", "default"},
    "checkboxes": {"label", "description", "options"},
}
"""Of GitHub's form schema: docs.github.com, "Syntax for GitHub's form schema"."""


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_there_are_forms() -> None:
    assert [path.stem for path in FORMS] == ["bug", "estimate", "feature"]
    assert set(read(FOLDER / "config.yml")) <= {"blank_issues_enabled", "contact_links"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_the_structure_of_githubs_schema(path: Path) -> None:
    form = read(path)
    assert set(form) <= {"name", "description", "title", "labels", "assignees", "projects", "type", "body"}
    assert isinstance(form["name"], str)
    assert isinstance(form["description"], str)
    assert all(isinstance(label, str) for label in form["labels"])
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields, "a form with markdown alone is refused"
    for field in form["body"]:
        attributes = field["attributes"]
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert set(attributes) <= ATTRIBUTES[field["type"]]
        assert all(isinstance(attributes[name], str) for name in {"value", "label", "description"} & set(attributes))
        assert set(field.get("validations", {})) <= {"required"}
    assert all(field["attributes"]["label"] for field in fields)
    identifiers = [field["id"] for field in fields]
    assert len(set(identifiers)) == len(identifiers)
    labels = [field["attributes"]["label"] for field in fields]
    assert len(set(labels)) == len(labels), "GitHub refuses labels that are alike"


def test_forms_ask_for_what_is_needed_to_find_the_cause() -> None:
    required = {
        path.stem: {field["id"] for field in read(path)["body"] if field.get("validations", {}).get("required")}
        for path in FORMS
    }
    assert required["bug"] == {"what", "doctor"}
    assert required["estimate"] == {"job", "predicted", "measured", "gpu", "versions", "method"}
    assert required["feature"] == {"problem", "kind"}
