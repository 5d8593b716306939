"""The probe: a thread inside a training process that tells what its allocator and its trainer know."""
