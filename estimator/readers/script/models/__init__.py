"""Models in a script: their parts and parameters, configs, adapters and layers, and what a reading notes of them.

Lives here: what loads, builds, changes, freezes and wraps models; nothing is imported of the libraries.
"""
