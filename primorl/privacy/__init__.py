"""The mechanism and its accounting. Imports nothing of the other rooms."""
