"""Tables of plain text, measured in terminal cells."""

from rich.cells import cell_len

from vramtop.tui.draw.text_output import format_table, printable, truncate


def test_columns_are_aligned_beside_wide_characters():
    lines = format_table([("GPU", "模型训练", "1"), ("2", "card", "22")], "><>")
    assert lines == ["GPU  模型训练   1", "  2  card      22"]
    assert len({cell_len(line) for line in lines}) == 1


def test_a_line_is_cut_to_a_number_of_cells():
    assert truncate("模型训练", 5) == "模型"
    assert truncate("plain text", 5) == "plain"
    assert truncate("größe", 5) == "größe"


def test_invisible_characters_are_removed():
    assert printable("a\u3164b\ufe0f\u202ec\x1b[1m") == "ab c [1m"
