"""Commands of the laboratory, one file each; the entry points of this package name them."""
