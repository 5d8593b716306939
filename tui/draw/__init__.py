"""Drawing as plain data: bars, graphs, the palette, labels, and text for plain terminals.

Lives here: cells, colours and short texts without widgets; ``gpu_bars`` and ``labels`` make Textual's ``Content``.
"""
