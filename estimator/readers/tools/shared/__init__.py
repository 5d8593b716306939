"""Shared by several tools: the record of a tool, its files, ranks, options and trained parameters."""
