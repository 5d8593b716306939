"""The program that a described job stands for: a training script that one can read and run.

Lives here: the script as text (``training_script``). Nothing here runs it.
"""
