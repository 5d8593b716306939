"""The probe: a thread in a training process that publishes its allocator's counters, and the reader on vramtop's side.

Lives here: publisher, trainer and bootstrap run in the user's process and import nothing of vramtop.
"""
