"""ε of an event, and the settings that meet a target ε."""
