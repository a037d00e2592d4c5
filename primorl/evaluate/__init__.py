"""Returns, the private question, the recommendation, the summary."""
