"""What only a GPU needs: CUDA graphs, replayed rounds and the fused kernel of softmax regression."""
