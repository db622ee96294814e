"""Commands of a federation's operator: ``fedfw deploy sign``, ``hub``, ``proxy`` and ``check``."""

import argparse
from pathlib import Path

from fedfw.cli.arguments import adds, argument
from fedfw.deployment.flower.proxy import PROGRAMS, Address, ProxySettings, write_config
from fedfw.options import options_of

add_sign_arguments = adds(
    argument("app", type=Path, help="an app's folder, or a bundle"),
    argument(
        "--key",
        required=True,
        type=Path,
        metavar="FILE",
        help="made by ssh-keygen -t ed25519 -N ''",
    ),
    argument(
        "--out",
        type=Path,
        default=Path("bundles"),
        metavar="FOLDER",
        help="where both go [%(default)s]",
    ),
)


def sign(options: argparse.Namespace) -> int:
    """Pack an app's folder, or take a bundle (.fab) as it is, and sign it. The bundle and the
    signature go into a folder that 'fedfw deploy hub' serves; several people may sign the same
    bundle. Sign what you have read.
    """
    from fedfw.deployment.flower.bundles import Bundle, read_signing_key, trust_line

    key = read_signing_key(options.key)
    bundle = Bundle.read(options.app)
    path = bundle.sign(key, options.out)
    print(f"{path} is signed; its SHA-256 is {bundle.digest}.")
    print(f"It runs by: flwr run {bundle.spec}")
    print(
        "A node runs it if the file of its --trusted-entities has the "
        f"line\n{trust_line(key.public_key())}"
    )
    return 0


add_hub_arguments = adds(
    argument("folder", type=Path, help="what fedfw deploy sign has written"),
    argument(
        "--listen",
        default="127.0.0.1:8600",
        metavar="HOST:PORT",
        help="a local address [%(default)s]",
    ),
)


def hub(options: argparse.Namespace) -> int:
    """Hand the bundles of a folder, with their signatures, to a SuperLink that was started with
    FLWR_SUPERGRID_API_URL=http://127.0.0.1:8600/v1. It runs until it is ended.
    """
    from fedfw.deployment.flower.hub import make_hub

    with make_hub(options.folder, Address.parse(options.listen)) as server:
        server.serve_forever()
    return 0


def _absolute(text: str) -> str:
    """Return an absolute path; an empty one stays empty."""
    return str(Path(text).absolute()) if text else ""


add_proxy_arguments = adds(
    argument("--config", required=True, choices=list(PROGRAMS), help="the program to configure"),
    argument("--listen", required=True, metavar="HOST:PORT", help="the public address"),
    argument(
        "--to",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="where the SuperLink listens [%(default)s]",
    ),
    *(
        argument(
            f"--{one.key}",
            type=_absolute if str(one.default).startswith("/") else type(one.default),
            default=one.default,
            metavar="VALUE",
            help=f"{one.help} [%(default)s]",
        )
        for one in options_of(ProxySettings).values()
    ),
)


def proxy(options: argparse.Namespace) -> int:
    """Print a configuration for nginx (1.21.5 or later, with the stream module) or HAProxy (2.6 or
    later) as the public address of a SuperLink. It forwards the calls of registered SuperNodes,
    answers every other path 404, and limits connections, bodies and times for each address.
    docs/deployment.md says how to install and run it.
    """
    given = {
        name: declared.check(getattr(options, name), "command line")
        for name, declared in options_of(ProxySettings).items()
    }
    addresses = (Address.parse(options.listen), Address.parse(options.to))
    print(write_config(options.config, ProxySettings(*addresses, **given)), end="")
    return 0


add_check_arguments = adds(
    argument("--address", metavar="HOST:PORT", help="the federation's public address"),
    argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="the certificate of its authority, which owners have",
    ),
    argument(
        "--server-dir", type=Path, metavar="DIR", help="the server's keys and *.service files"
    ),
    argument(
        "--node-dir", type=Path, metavar="DIR", help="a node's keys, trust and *.service files"
    ),
)


def check(options: argparse.Namespace) -> int:
    """Look at a running federation as an outsider would (--address with --ca), at the files of the
    server's host (--server-dir), or at those of a node's host (--node-dir). The status is 1 if an
    outsider could get in, a strange bundle could run, the owner of the data was not asked or their
    ledger is damaged, or if anything could not be checked, for example because a unit file is
    missing.
    """
    from fedfw.deployment.flower import checks

    if (options.address is None) != (options.ca is None):
        raise ValueError("--address and --ca belong together: the outsider has both")
    results = []
    if options.address is not None:
        if not options.ca.is_file():
            raise ValueError(f"--ca {options.ca} is missing, expected the authority's certificate")
        outside = checks.Outside(Address.parse(options.address), options.ca)
        results += checks.findings(checks.ADDRESS_CHECKS, outside)
    for folder, of_folder in (
        (options.server_dir, checks.SERVER_CHECKS),
        (options.node_dir, checks.NODE_CHECKS),
    ):
        if folder is not None:
            if not folder.is_dir():
                raise ValueError(f"{folder} is no folder")
            results += checks.findings(of_folder, folder)
    if not results:
        raise ValueError(
            "nothing to look at: expected --address with --ca, --server-dir or --node-dir"
        )
    print("\n".join(map(str, results)))
    print("\nWhatever these say, Flower cannot do better than this:")
    print("\n".join(f"- {limit}" for limit in checks.LIMITS))
    return 0 if all(finding.verdict is checks.Verdict.OK for finding in results) else 1
