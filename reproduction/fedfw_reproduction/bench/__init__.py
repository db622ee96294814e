"""How fast a round is, beside other ways to write it: the same rounds, the same final loss,
interleaved in one run.
"""
