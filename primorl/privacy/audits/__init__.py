"""The audits' mathematics: lower bounds on ε."""
