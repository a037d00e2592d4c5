"""Using a policy on tables: prediction, ONNX, drafting the entry of a log."""
