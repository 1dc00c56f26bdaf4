"""Make the passwords of new nodes.

::

    python3 make_secrets.py redlock-a=10.0.0.1 redlock-b=10.0.0.2 redlock-c=10.0.0.3

For each node, named ``NAME=HOST`` or ``NAME=HOST:PORT``, it writes a file with the
users of this node. ``nodes.json`` is for the clients: it has the passwords. The files
of the nodes have only their hashes. Needs Python and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).parent
RIGHTS = HERE / "rights.txt"  # what `celery -A proj redlock doctor --acl` prints
# The user `health` may only PING, with any password: for health checks.
USERS = """\
user default off
user health on nopass resetkeys resetchannels -@all +ping
user redlock on #{hash} {rights}
"""


def node(text: str) -> tuple[str, str]:
    """Read ``NAME=HOST:PORT``."""
    name, _, address = text.partition("=")
    if not name.replace("-", "").replace("_", "").isalnum() or not address:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=HOST or NAME=HOST:PORT, such as redlock-a=10.0.0.1"
        )
    return name, address if ":" in address else f"{address}:6379"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nodes", nargs="+", type=node, metavar="NAME=HOST:PORT")
    parser.add_argument(
        "--to",
        type=Path,
        default=HERE / "secrets",
        metavar="FOLDER",
        help="a new folder; default: %(default)s",
    )
    parser.add_argument("--tls", action="store_true", help="write rediss:// URLs")
    parser.add_argument(
        "--ca", metavar="FILE", help="the certificate of the CA, where clients have it"
    )
    given = parser.parse_args()
    names = dict(given.nodes)
    if len(names) < len(given.nodes):
        parser.error("two nodes have the same name")
    if given.ca and not given.tls:
        parser.error("--ca is for --tls")

    rights = RIGHTS.read_text(encoding="utf-8").strip()
    try:
        given.to.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        sys.exit(f"Nothing was written: {given.to} exists. Nodes keep their passwords.")
    scheme = "rediss" if given.tls else "redis"
    options = f"?ssl_ca_certs={given.ca}" if given.ca else ""
    clients = []
    for name, address in names.items():
        password = secrets.token_urlsafe(32)
        digest = hashlib.sha256(password.encode()).hexdigest()
        users = USERS.format(hash=digest, rights=rights)
        file = given.to / f"{name}.acl"
        file.write_text(users, encoding="ascii")
        file.chmod(0o644)  # the server is another user, who does not enter the folder
        url = f"{scheme}://redlock:{password}@{address}/0{options}"
        clients.append({"name": name, "url": url})
    passwords = given.to / "nodes.json"
    passwords.touch(mode=0o600)
    passwords.write_text(json.dumps(clients, indent=2) + "\n", encoding="ascii")
    print(f"Wrote {passwords}, for clients, and one file for each node: NAME.acl.")


if __name__ == "__main__":
    main()
