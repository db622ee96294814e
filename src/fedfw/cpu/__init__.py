"""What is compiled for processors: the gradient of softmax regression."""
