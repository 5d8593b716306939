import pytest
from builders import make_budget, make_gpu, make_snapshot

from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.board.fit import check_fit
from vramtop.tui.draw.palette import VERDICTS
from vramtop.tui.screens.fit.headline import headline, large_letters


def lines(budget, snapshot, **options):
    fit = check_fit(budget, device_capacities(snapshot, {}))
    return [line.plain for line in headline(fit, budget, **options)]


def test_the_figures_stand_beside_the_large_verdict():
    found = lines(make_budget(device=90), make_snapshot([make_gpu(0)]), width=80)
    assert len(found) == 3
    assert "needs   90.0 GiB" in found[0]
    assert "free    78.5 GiB" in found[1]
    assert "short   11.5 GiB" in found[2]
    assert all("█" in line or "▀" in line for line in found)


def test_without_room_or_unicode_the_figures_are_in_one_line():
    snapshot = make_snapshot([make_gpu(0)])
    narrow = lines(make_budget(device=10), snapshot, width=22)
    assert len(narrow) == 4
    assert narrow[3].startswith("needs   10.0 GiB")
    plain = lines(make_budget(device=10), snapshot, width=80, ascii_only=True)
    assert plain == [" FITS   needs   10.0 GiB · free    78.5 GiB · left    68.5 GiB"]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_letters(verdict):
    rows = large_letters(VERDICTS[verdict].word)
    assert len(rows) == 3
    assert len({len(row) for row in rows}) == 1
