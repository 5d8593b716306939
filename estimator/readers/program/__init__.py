"""The program that runs: launchers, environment, rank count and the run's own logs.

Lives here: what can be read before it is known which tool trains.
"""
