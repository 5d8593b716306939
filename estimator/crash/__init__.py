"""After a crash: out-of-memory messages, job logs and memory snapshots as plain records, and their explanation.

Lives here: readers of what a dead run has left, and what it says beside a job's budget. No processes, no GPUs.
"""
