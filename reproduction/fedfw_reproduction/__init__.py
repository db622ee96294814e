"""The laboratory of fedfw: the paper reproduced, studies, attacks and benchmarks, run by name."""
