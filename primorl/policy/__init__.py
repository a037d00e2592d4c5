"""SAC in the pessimistic model, and the policies it makes. Sees a model and start states, never the data."""
