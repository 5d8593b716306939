"""Files that vramtop keeps for the user: pending jobs, and reservations of GPU memory.

Lives here: reading and writing them safely beside other instances of vramtop.
"""
