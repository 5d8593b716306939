"""The optimizers: states per parameter, memory of the step, and names in libraries, one record per optimizer.

Lives here: the record, its kinds of states, the table in modules of rows, and the choice of a row by a library's name.
"""
