"""The program that is launched: launchers, ranks, accelerate and DeepSpeed settings, the script, and its run logs.

Lives here: what is true of any training program, whichever library trains.
Callers: ``trainer``, ``tools``, and the two entry points of ``readers``.
"""
