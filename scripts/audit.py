"""Read pip-audit's JSON from standard input, say what it means, and exit with 0, 1 or 2 as audit.sh
explains.
"""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Print one line for each vulnerability and one for the whole."""
    try:
        audited = json.load(sys.stdin)["dependencies"]
    except (ValueError, KeyError, TypeError):
        audited = []
    known = [(one, flaw) for one in audited for flaw in one.get("vulns", ())]
    for one, flaw in known:
        print(
            f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        )
    skipped = [one["name"] for one in audited if "skip_reason" in one]
    if skipped or not audited:
        what = f"{len(skipped)} of {len(audited)} versions" if audited else "any version"
        print(
            f"The advisory service could not be asked about {what}, so this audit proves nothing; "
            "what pip-audit said is in .venv-audit/log.",
            file=sys.stderr,
        )
        return 2
    print(f"{len(audited)} versions were audited, {len(known)} vulnerabilities are known.")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main())
