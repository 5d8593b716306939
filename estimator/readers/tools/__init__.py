"""Readers of the training tools that have configuration files and command lines of their own."""
