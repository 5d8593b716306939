"""Details of processes, read only while a screen shows them: figures at each reading, and all about one process.

Lives here: processor time, RAM and threads; environment, open files, parents, limits and control group; the tree.
"""
