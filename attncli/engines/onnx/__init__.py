"""Exported models, run by onnxruntime: their attention, read from the nodes of an ONNX graph."""
