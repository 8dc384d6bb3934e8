"""Non-finite gradients: seen every step, explained by running the micro-batch again."""
