"""The policy in the true environment: returns, their statistics, their figure."""
