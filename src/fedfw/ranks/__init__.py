"""Ranks: the processes that share one simulation, and what they tell each other.

``torchrun --nproc-per-node 2 -m fedfw run ...`` starts two processes, which are called ranks 0 and
1. Each keeps the data and the memories of some clients; what the server would be sent is added up
over ranks, and every rank takes the server's step. Sums are made in the order of the ranks or in
that of torch's all-reduce, which is fixed for a number of ranks, so the same number of ranks gives
the same bits, and all ranks hold the same bits.
"""

from fedfw.ranks.base import ALONE, Ranks
from fedfw.ranks.dividing import divided
from fedfw.ranks.joined import join_ranks

__all__ = ["ALONE", "Ranks", "divided", "join_ranks"]
