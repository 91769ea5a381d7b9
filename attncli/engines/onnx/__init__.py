"""Exported models, run by onnxruntime: the attention that an ONNX graph computes, read from its own nodes.

Importing this package imports neither onnx nor onnxruntime; `engine` does, and so do the modules that it uses.
"""
