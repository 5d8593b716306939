"""What the GPUs are holding: snapshots, recordings, attaching to processes, comparing with budgets."""
