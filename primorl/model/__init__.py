"""Released models: the ensemble, its pessimistic MDP, start states."""
