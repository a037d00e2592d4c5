"""Studies of online learning."""
