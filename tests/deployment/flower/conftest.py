"""What all tests of the Flower deployment need: Flower itself."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]
