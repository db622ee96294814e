"""Ways by which an outsider could get into a federation, or a strange bundle could run, looked for
one by one.

A check is a function from what it looks at to a `Finding`; each of the lists `ADDRESS_CHECKS`,
`SERVER_CHECKS` and `NODE_CHECKS` is a plain tuple of such functions, and another check is one more
entry.
"""

from fedfw.deployment.flower.checks.address import ADDRESS_CHECKS, Outside
from fedfw.deployment.flower.checks.findings import LIMITS, Finding, Verdict, findings
from fedfw.deployment.flower.checks.folders import NODE_CHECKS, SERVER_CHECKS

__all__ = [
    "ADDRESS_CHECKS",
    "LIMITS",
    "NODE_CHECKS",
    "SERVER_CHECKS",
    "Finding",
    "Outside",
    "Verdict",
    "findings",
]
