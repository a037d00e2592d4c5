"""SAC in the pessimistic model, the cloned behaviour, and the policies that they make."""
