"""Returns, private estimators, the recommendation, the summary."""
