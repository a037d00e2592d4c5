"""Private evaluation: what people get today, what a policy would give them, and whether the model can be believed."""
