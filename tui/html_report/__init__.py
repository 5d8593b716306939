"""The report on a recording as one HTML file.

Lives here: plots as plain data, drawn as SVG into the page. No Textual screen, no reading of recordings.
"""
