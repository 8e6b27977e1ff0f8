"""Clients, one module per protocol: async first, with a blocking face. They stand on `wire` alone.

    from penstock.client.blipmq import BlipMQClient, connect_blipmq
    from penstock.client.rustlog import RustLogClient, connect_rustlog

They use nothing that the protocol documents do not have, so they work with other servers too.
"""
