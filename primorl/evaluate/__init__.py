"""Returns, private questions, the recommendation, the summary."""
