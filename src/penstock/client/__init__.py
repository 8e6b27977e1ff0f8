"""Clients, one module per protocol: async first, with a blocking wrapper. They import nothing but `wire`.

    from penstock.client.blipmq import BlipMQClient, connect_blipmq
    from penstock.client.rustlog import RustLogClient, connect_rustlog
    from penstock.client.flymq import FlyMQClient, connect_flymq

They use only what the protocol documents define, so they work with other servers too.
"""
