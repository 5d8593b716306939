from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.visual import Visual

from vramtop.tui.widgets.content_lines import ContentLines

LINES = [
    Content.assemble(("held ", "$foreground 65%"), ("████", "#60a5fa"), "  12.5 GiB"),
    Content.assemble(Content.styled("O", "#0b1220 on #f59e0b"), Content.styled(" over ", "bold"), "好"),
    Content("all part").stylize("dim").stylize("italic", 4, 8),
    Content("plain"),
    Content(),
]


class LinesApp(App[None]):
    CSS = "ContentLines { height: 5; background: $panel; }"

    def compose(self) -> ComposeResult:
        yield ContentLines()


def cells(strip: Any) -> list[tuple[str, str, str, bool, bool, bool]]:
    return [
        (sign, str(style.color), str(style.bgcolor), bool(style.bold), bool(style.dim), bool(style.italic))
        for text, style, _ in strip
        for sign in text
    ]


@asynccontextmanager
async def shown() -> AsyncIterator[tuple[ContentLines, Any]]:
    async with LinesApp().run_test(size=(40, 10)) as pilot:
        lines = pilot.app.query_one(ContentLines)
        lines.show_lines(LINES)
        await pilot.pause()
        yield lines, pilot


async def test_lines_look_like_those_drawn_by_textual():
    async with shown() as (lines, _):
        for y, line in enumerate(LINES):
            (drawn,) = Visual.to_strips(lines, line, 40, 1, lines.visual_style, pad=True)
            assert cells(lines.render_line(y)) == cells(drawn)


async def test_only_lines_that_changed_are_painted(monkeypatch: pytest.MonkeyPatch):
    async with shown() as (lines, _):
        before = [lines.render_line(y) for y in range(5)]
        painted: list[Any] = []
        monkeypatch.setattr(lines, "refresh", lambda *regions, **_: painted.extend(regions))
        lines.show_lines([*LINES[:3], Content("plainer"), LINES[4]])
        after = [lines.render_line(y) for y in range(5)]
        assert [region.y for region in painted] == [y for y in range(5) if before[y] is not after[y]] == [3]
        painted.clear()
        lines.show_lines(LINES[:2])
        assert sorted(region.y for region in painted) == [2, 3, 4]
