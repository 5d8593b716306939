"""Drawing as plain data: bars, graphs, the palette, labels, and text for plain terminals.

Lives here: cells, colours and short texts without widgets; ``gpu_bars`` and ``labels`` make Textual's ``Content``.
Callers: every other room.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .bars import (
        PAINTED as PAINTED,
        BarRange as BarRange,
        BarSegment as BarSegment,
        Cell as Cell,
        cell_runs as cell_runs,
        component_segments as component_segments,
        draw_bar as draw_bar,
        memory_segment as memory_segment,
        split_beyond as split_beyond,
    )
    from .cell_text import CellText as CellText, Tone as Tone, status_tone as status_tone
    from .colours import (
        DEFAULT_COLOURS as DEFAULT_COLOURS,
        SAME_AS as SAME_AS,
        chosen_colour as chosen_colour,
        colour_of as colour_of,
        colours_on as colours_on,
        use_colours as use_colours,
        weak_colours as weak_colours,
    )
    from .contrast import (
        BLACK as BLACK,
        MIN_DRAWING_CONTRAST as MIN_DRAWING_CONTRAST,
        MIN_TEXT_CONTRAST as MIN_TEXT_CONTRAST,
        VGA as VGA,
        WHITE as WHITE,
        XTERM as XTERM,
        Rgb as Rgb,
        luminance as luminance,
        nearest_of_16 as nearest_of_16,
        nearest_of_256 as nearest_of_256,
        readable as readable,
        readable_of_16 as readable_of_16,
        readable_of_256 as readable_of_256,
        rgb_of_256 as rgb_of_256,
    )
    from .gpu_bars import (
        BUDGET_LINE as BUDGET_LINE,
        bar_content as bar_content,
        beyond_budget_bytes as beyond_budget_bytes,
        budget_cells as budget_cells,
        held_cells as held_cells,
        held_cells_with_budget_mark as held_cells_with_budget_mark,
        held_colour as held_colour,
    )
    from .gpu_figures import (
        gpu_figure_parts as gpu_figure_parts,
        hardware_cell as hardware_cell,
        power_words as power_words,
        reason_badge as reason_badge,
    )
    from .labels import (
        FAINT as FAINT,
        MUTED as MUTED,
        SEPARATOR as SEPARATOR,
        WORST_FIRST as WORST_FIRST,
        alarm as alarm,
        badge as badge,
        difference_label as difference_label,
        format_duration as format_duration,
        gpu_labels as gpu_labels,
        gpu_status as gpu_status,
        high_water_label as high_water_label,
        join_to_width as join_to_width,
        left_and_right as left_and_right,
        process_name as process_name,
        run_moments as run_moments,
        severity_rank as severity_rank,
        shorten as shorten,
        signed_gib as signed_gib,
        worst_row as worst_row,
    )
    from .memory_graph import (
        EIGHTHS as EIGHTHS,
        Readings as Readings,
        TimelineMark as TimelineMark,
        TimeMark as TimeMark,
        axis_labels as axis_labels,
        column_sizes as column_sizes,
        graph_levels as graph_levels,
        level_of as level_of,
        level_rows as level_rows,
        timeline_cells as timeline_cells,
        timeline_marks as timeline_marks,
    )
    from .palette import (
        ASCII_SIGNS as ASCII_SIGNS,
        CHECK_RUNNING as CHECK_RUNNING,
        CHECK_UNKNOWN as CHECK_UNKNOWN,
        CHECKS as CHECKS,
        COMPONENTS as COMPONENTS,
        OTHER_MEMORY as OTHER_MEMORY,
        PHASES as PHASES,
        STATUSES as STATUSES,
        VERDICTS as VERDICTS,
        Mark as Mark,
        MemoryKind as MemoryKind,
        blend as blend,
        colour_meaning as colour_meaning,
        component_mark as component_mark,
        ink_on as ink_on,
        on_colour as on_colour,
        peak_place as peak_place,
        phase_place as phase_place,
        status_mark as status_mark,
        unattributed_label as unattributed_label,
    )
    from .process_figures import figure_reason as figure_reason, figure_text as figure_text
    from .terminal_capabilities import (
        ColourDepth as ColourDepth,
        colour_depth as colour_depth,
        is_dumb_terminal as is_dumb_terminal,
        prepare_textual as prepare_textual,
    )
    from .text_output import (
        TextOutput as TextOutput,
        detect_output as detect_output,
        format_table as format_table,
        printable as printable,
        truncate as truncate,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "bars": (
                "BarRange BarSegment Cell cell_runs component_segments draw_bar memory_segment PAINTED split_beyond"
            ),
            "process_figures": "figure_reason figure_text",
            "terminal_capabilities": "colour_depth ColourDepth is_dumb_terminal prepare_textual",
            "cell_text": "CellText status_tone Tone",
            "colours": "chosen_colour colour_of colours_on DEFAULT_COLOURS SAME_AS use_colours weak_colours",
            "contrast": (
                "BLACK luminance MIN_DRAWING_CONTRAST MIN_TEXT_CONTRAST nearest_of_16 nearest_of_256 readable "
                "readable_of_16 readable_of_256 Rgb rgb_of_256 VGA WHITE XTERM"
            ),
            "gpu_bars": (
                "bar_content beyond_budget_bytes budget_cells BUDGET_LINE held_cells held_cells_with_budget_mark "
                "held_colour"
            ),
            "gpu_figures": "gpu_figure_parts hardware_cell power_words reason_badge",
            "labels": (
                "alarm badge difference_label FAINT format_duration gpu_labels gpu_status high_water_label "
                "join_to_width left_and_right MUTED process_name run_moments SEPARATOR severity_rank "
                "shorten signed_gib WORST_FIRST worst_row"
            ),
            "memory_graph": (
                "axis_labels column_sizes EIGHTHS graph_levels level_of level_rows Readings "
                "timeline_cells timeline_marks TimelineMark TimeMark"
            ),
            "palette": (
                "ASCII_SIGNS blend CHECK_RUNNING CHECK_UNKNOWN CHECKS colour_meaning component_mark COMPONENTS ink_on "
                "Mark MemoryKind on_colour OTHER_MEMORY peak_place phase_place PHASES status_mark STATUSES "
                "unattributed_label VERDICTS"
            ),
            "text_output": "detect_output format_table printable TextOutput truncate",
        },
    )
