"""A federation: what is trained, and Flower's two apps for it."""
