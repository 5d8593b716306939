"""Drawing as plain data: bars, graphs, the palette, labels, and text for plain terminals.

Lives here: cells, colours and short texts without widgets; those about GPUs, labels and the legend make Textual's
``Content``.
"""
