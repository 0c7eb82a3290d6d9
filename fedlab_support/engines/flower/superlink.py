"""A SuperLink that asks for a secret before it starts a run.

Flower checks which nodes may join, but anyone who reaches a SuperLink of its open
edition may start a run, and with it code of their own on the server and on every node,
or act as the server of somebody else's run. Here the SuperLink asks for a secret, kept
in a file that only its owner can read::

    python -m fedlab_support.engines.flower.superlink serve secret --port 8000 …
    python -m fedlab_support.engines.flower.superlink login secret server.example:8000

``serve`` starts ``flower-superlink`` with the options that follow, and creates the file
if necessary. ``login`` stores the secret where ``flwr`` looks for it, in
``$FLWR_HOME``.
"""

from __future__ import annotations

import hmac
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

from .access import login, secret_of


def serve(file: Path) -> None:
    """Run ``flower-superlink`` (options in ``sys.argv``) that asks for the secret."""
    program = import_module("flwr.superlink.cli.flower_superlink")
    secret = secret_of(file)
    settings = program._parse_superlink_lifespan_config
    helper = program._get_superexec_command

    class AsksForSecret(NoOpControlAuthnPlugin):
        """Accept a request with the secret, as the one account of a SuperLink."""

        def validate_tokens_in_metadata(self, metadata):
            """Whether the request has the secret, and the account."""
            given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
            if not hmac.compare_digest(given.encode(), secret.encode()):
                return False, None
            return super().validate_tokens_in_metadata(metadata)

        def refresh_tokens(self, metadata):
            """Never: the secret stays the same."""
            return None, None

    program.load_control_authn_plugin = AsksForSecret
    # the process that starts servers has to know the secret, too
    content = {"superexec_auth_secret": file.read_bytes()}
    option = ["--superexec-auth-secret-file", str(file.resolve())]
    program._parse_superlink_lifespan_config = lambda: replace(settings(), **content)
    program._get_superexec_command = lambda *given, **named: [
        *helper(*given, **named),
        *option,
    ]
    program.flower_superlink()


def main() -> None:
    """Serve or log in, as the module's docstring says."""
    match sys.argv[1:]:
        case ["serve", file, *options]:
            sys.argv = ["flower-superlink", *options]
            serve(Path(file))
        case ["login", file, address]:
            login(secret_of(Path(file)), address)
        case _:
            sys.exit("usage: … serve SECRET_FILE [options] | login SECRET_FILE ADDRESS")


if __name__ == "__main__":
    main()
