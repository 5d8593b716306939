"""Readers of other tools' flags and configuration files: to a Job, each field with where it came from."""
