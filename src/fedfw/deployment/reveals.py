"""Leaks of the choices in an owner's file, with the numbers of the leakage study
(docs/studies/leakage.md), which a test compares with them.
"""

LEAK_TABLE = """\
what the server sees        images recovered (median)  the sample (linear model)
gradients or models         100 % (45.6 dB)            exactly (cosine 1.000000)
atoms of l2                 60 % (25.8 dB)             exactly (cosine 1.000000)
atoms of group              0 % (12.6 dB)              exactly (cosine 1.000000)
atoms of nuclear            0 % (12.6 dB)              exactly (cosine 1.000000)
atoms of linf (like box)    0 % (12.8 dB)              in part (cosine 0.492765)
atoms of ksparse:k=100      0 % (12.3 dB)              in part (cosine 0.199676)
atoms of l1 (like simplex)  0 % (12.3 dB)              one coordinate"""
"""The findings of the study's attacker, for each kind of message of a client with one image: how
many of the images are recovered, which means found at 25 dB or more, the median PSNR of those that
the search found, and the sample as a linear model's message gives it away.
"""
SAMPLES_SENTENCE = (
    "A search for the images behind a gradient reaches 45.6 dB with 1, 13.9 dB with 8, 12.4 dB "
    "with 64 images in it; a guess that looks at nothing reaches 14.2 dB."
)
"""The effect of more samples in a gradient."""
PROMISE_SENTENCE = (
    "A server that chooses the model can isolate single samples whatever these limits are: only "
    "the privacy budget is a promise."
)
"""The limit of every choice but the privacy budget."""
