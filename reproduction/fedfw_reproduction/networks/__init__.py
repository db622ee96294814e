"""Networks trained by FedLMO beside its peers: what is run, in which order, and the page that it
makes.
"""
