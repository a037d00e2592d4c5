"""Using a policy on tables: prediction and ONNX."""
