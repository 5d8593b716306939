"""Learning from measurements: what was predicted and what was seen of a run, and what that says about another job.

Lives here: the record of a measured run without paths, names or secrets, and the correction of an estimate by such
records. No files, no processes.
"""
