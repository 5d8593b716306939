from waiting import until

from vramtop.monitor.storage.recent_models import RecentModels


def test_the_last_model_comes_first_and_each_is_there_once(tmp_path):
    recent = RecentModels(tmp_path / "recent.json")
    assert recent.names() == ()
    for at, name in enumerate(["a", "b", "a", *(f"m{number}" for number in range(9))]):
        recent.add(name)
        until(lambda name=name: recent.names()[:1] == (name,))
        if at == 2:
            assert recent.names() == ("a", "b")
    assert recent.names() == tuple(f"m{number}" for number in range(8, 0, -1))


def test_a_file_that_cannot_be_read_is_no_error(tmp_path):
    (tmp_path / "recent.json").write_text("not json")
    assert RecentModels(tmp_path / "recent.json").names() == ()
