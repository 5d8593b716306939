"""Reports as one HTML file, of a recording or of measured runs, and their plots as files.

Lives here: plots as plain data, drawn as SVG into the page and into files of their own. No Textual screen, no reading
of recordings.
"""
