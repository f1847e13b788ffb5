"""Which requests share a step, in what order, and how much of it each gets."""
