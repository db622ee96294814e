"""Who needs how many bytes and rounds: every method on ten problems, and the fronts that their
curves leave.
"""
