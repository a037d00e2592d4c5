"""Returns of trained policies."""
