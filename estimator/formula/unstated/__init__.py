"""Settings that a job leaves open: the jobs that it may be instead, and the range that holds them all."""
