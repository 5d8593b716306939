"""The process table, and what screens with it do with processes.

Lives here: the table's rows as plain data, the table, and the base class of screens that show it.
"""
