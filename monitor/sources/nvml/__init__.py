"""NVML through pynvml: driver calls with timeouts, memory, MIG devices, processes, and errors as sentences.

Lives here: the only code that calls the driver.
"""
