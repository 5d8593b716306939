"""What a training job will take of GPU memory: jobs, models, budgets."""
