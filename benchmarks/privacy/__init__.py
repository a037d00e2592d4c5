"""Studies of the ledger, of crashes and of attacks."""
