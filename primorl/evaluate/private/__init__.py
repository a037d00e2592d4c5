"""Private evaluation: today's returns by the people, and a policy's value in the model."""
