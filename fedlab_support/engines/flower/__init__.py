r"""Run a federation on Flower: every client in a process or on a machine of its own.

A *recipe* is a function that every process of the federation can import. It takes
``engine`` and settings, and returns the run: ``def recipe(engine, **settings): return
Run(…, engine=engine)``. The server steps through this run. Each node builds the same
run and uses the data of its own clients; private weights and memory stay on the node.

**One machine**: ``fl.LocalFlower`` starts all processes and ends them, with a
certificate and a secret of its own. To try it by hand, on a machine without other
users, in a folder made by ``write_app(folder)`` of ``one_machine.py``::

    export FLWR_HOME=$PWD/home FLWR_TELEMETRY_ENABLED=0    # in every shell
    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 \
        --node-config "partition-id=0 num-partitions=2"
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9095 \
        --node-config "partition-id=1 num-partitions=2"
    flwr run . local --stream \
        --run-config 'recipe="mine:recipe" settings="{}" rounds=2 output="outcome"'

with ``[superlink.local]``, ``address = "127.0.0.1:8000"``, ``insecure = true`` in
``$FLWR_HOME/config.toml``. Client i belongs to the node with partition-id i
modulo num-partitions; ``--node-config 'clients="0,3,7"'`` lists clients instead.

**Several machines**: the same versions and the recipe installed on each; one key and
certificate for the SuperLink's name, signed by ``ca.pem``; one key pair for each node
(``ssh-keygen -t ecdsa -b 384 -N "" -f node0``). Flower serves nodes and ``flwr`` on one
port, and lets anyone who reaches it start code on the server and on all nodes; so start
it with a secret (``superlink.py``). On the server::

    python -m fedlab_support.engines.flower.superlink serve secret \
        --host 0.0.0.0 --port 8000 --ssl-ca-certfile ca.pem \
        --ssl-certfile server.pem --ssl-keyfile server.key \
        --enable-supernode-auth --disable-runtime-dependency-installation
    python -m fedlab_support.engines.flower.superlink login secret server.example:8000
    flwr supernode register node0.pub server        # once for every node

with ``address = "server.example:8000"`` and ``root-certificates = "ca.pem"`` (a full
path) under ``[superlink.server]``. The certificate must also name the address at which
the SuperLink's own helper reaches it, 127.0.0.1. On each node, which needs ``ca.pem``
and its key, but not the secret::

    flower-supernode --superlink server.example:8000 --root-certificates ca.pem \
        --auth-supernode-private-key node0 --node-config 'clients="0,3,7"'

then ``flwr run . server --stream --run-config …`` as above. A node says which clients
it has; ``owners="{\"123\": [0, 3, 7]}"`` in the run's configuration fixes which it may
have, by the number that ``register`` printed. A recipe loads the data of its own
machine, for instance with ``load(…)`` and ``FEDLAB_DATA``. Server and nodes compare the
runs they built before round 1; a node that built another one is left out. Of its
samples a node sends means only (logged losses, scores of validation samples), and with
``Privacy`` nothing but noisy weights. The recipe contains the seed, so
``Privacy(seeded=True)`` does not protect clients from a server that has the recipe.
"""
