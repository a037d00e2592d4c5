"""Using a policy on tables of observations: prediction, ONNX, drafting the entry of a new log."""
