"""The demonstration: a load over all five protocols, a pipeline that makes tables of it, and what must be
in them.

    events.py      orders, clicks and telemetry from a seed, with late, repeated and malformed ones
    reference.py   what the tables must hold, computed from what was sent
    sending.py     the load through our clients, over real sockets
    running.py     a broker and a pipeline of their own, the load, and the wait for the tables
    project/       the files of the pipeline project

`penstock demo` is in cli/. The tests of the whole way use the same load and the same reference.
"""
