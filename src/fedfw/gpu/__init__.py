"""Code for GPUs alone: CUDA graphs, replayed rounds and the fused kernel of softmax regression."""
