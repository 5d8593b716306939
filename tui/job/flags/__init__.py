"""The command-line flags that describe a job: one for each key of the job file, and the names of other tools.

Lives here: the flags, what each sets, the words as people type them, and the settings that all of them make together.
"""
