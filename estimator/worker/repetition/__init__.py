"""Traces of deep models from those of shallow ones: layers that are alike need to be traced only a few times."""
