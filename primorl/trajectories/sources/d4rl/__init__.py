"""Files in D4RL's layout."""
