"""Keys that the user chose: what can be used is put in force, every mistake is one sentence, and its default stays."""

from typing import Any

import pytest

from vramtop.tui.keys import check_keys


def checked(**wanted: Any) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    found = check_keys({key_id.replace("__", "."): value for key_id, value in wanted.items()})
    return found.chosen, found.problems


def only_problem(**wanted: Any) -> str:
    chosen, problems = checked(**wanted)
    assert len(problems) == 1
    assert set(chosen) == {key_id.replace("__", ".") for key_id in wanted} - set(problems)
    (sentence,) = problems.values()
    assert sentence.count("\n") == 0
    return sentence


def test_a_key_and_a_list_of_keys_are_taken() -> None:
    chosen, problems = checked(dashboard__fit_check="F", fit__pin=["f2", "Ctrl+P "[:-1].replace("P", "B"), "P"])
    assert not problems
    assert chosen == {"dashboard.fit_check": ("F",), "fit.pin": ("f2", "ctrl+b", "P")}


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("fit.pinn", "fit.pin"),
        ("dashboard.fit", "dashboard.fit_check"),
        ("dashboard.sort", "processes.sort"),
        ("fti.pni", "fit.pin"),
        ("process.kill", "processes.signal"),  # signal.kill is fixed
    ],
)
def test_an_unknown_id_names_the_nearest(wrong: str, nearest: str) -> None:
    found = check_keys({wrong: "z"})
    assert found.problems == {wrong: f"keys.{wrong}: no key setting has this name; the nearest is {nearest}"}


def test_an_unknown_key_is_named() -> None:
    assert only_problem(fit__pin="strg+k").startswith("keys.fit.pin: 'strg+k' is not the name of a key; write it as")
    assert "and Tab are one key" in only_problem(fit__pin="ctrl+i")
    assert "give a key" in only_problem(fit__pin=5)
    assert "give a key" in only_problem(fit__pin=[])
    assert checked(fit__pin="f2,p")[0] == {"fit.pin": ("f2", "p")}
    assert checked(fit__pin=",")[0] == {"fit.pin": ("comma",)}


def test_a_key_that_another_action_has_on_the_same_screen_is_refused() -> None:
    assert only_problem(dashboard__fit_check="a") == (
        "keys.dashboard.fit_check: a is taken by dashboard.attach (dashboard: attach); choose another one, or give "
        "that one another key"
    )
    assert "taken by app.quit" in only_problem(dashboard__fit_check="q")
    assert "taken by app.help" in only_problem(processes__sort="?")
    assert "1 is fixed (fit check: apply a suggestion)" in only_problem(fit__pin="1")
    assert "Ctrl+Q is fixed: quit" in only_problem(dashboard__attach="ctrl+q")
    assert "Tab is fixed" in only_problem(dashboard__attach="tab")


def test_of_two_chosen_keys_that_clash_the_first_one_counts() -> None:
    chosen, problems = checked(dashboard__attach="A", dashboard__gpu="A")
    assert chosen == {"dashboard.attach": ("A",)}
    assert list(problems) == ["dashboard.gpu"]


def test_keys_may_be_swapped() -> None:
    chosen, problems = checked(dashboard__fit_check="a", dashboard__attach="f")
    assert not problems
    assert chosen == {"dashboard.fit_check": ("a",), "dashboard.attach": ("f",)}


def test_a_default_that_comes_back_may_clash_with_the_others() -> None:
    """Attach keeps its default, so the fit check cannot have it."""
    chosen, problems = checked(dashboard__fit_check="a", dashboard__attach="no such key")
    assert not chosen
    assert set(problems) == {"dashboard.fit_check", "dashboard.attach"}


def test_the_same_key_on_different_screens_is_no_clash() -> None:
    chosen, problems = checked(fit__pin="ctrl+b", attach__dismiss="ctrl+b", dashboard__record="ctrl+b")
    assert not problems
    assert len(chosen) == 3


def test_keys_that_mean_the_same_are_no_clash_but_k_on_the_dashboard_is() -> None:
    assert "taken by processes.signal" in only_problem(list__up=["up", "k"])
    chosen, problems = checked(list__up=["up", "k"], list__down=["down", "j"], processes__signal="X")
    assert not problems
    assert chosen["list.up"] == ("up", "k")


def test_what_works_in_fields_needs_a_key_that_is_no_text() -> None:
    assert "must work in fields" in only_problem(app__back="b")
    assert not checked(app__back=["escape", "B"])[1]
    assert "could then not be typed" in only_problem(app__palette="P")


def test_keys_of_dialogs_are_fixed_and_a_file_that_has_one_is_told_so() -> None:
    assert only_problem(signal__kill="x") == (
        "keys.signal.kill is no longer a setting and is ignored: keys of dialogs are fixed"
    )
