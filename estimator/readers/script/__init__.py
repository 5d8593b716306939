"""A training script's source: followed without being run, and read for what decides its memory.

Lives here: what is trained and held, the settings that the script states, and what it leaves open.
"""
