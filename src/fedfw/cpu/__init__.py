"""Compiled code for processors: the gradient of softmax regression."""
