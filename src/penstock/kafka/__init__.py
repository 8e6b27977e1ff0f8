"""The second engine: the log is Apache Kafka's, and this process one of several equal gateways to it.

Implements the engine page (penstock.log.engine) on topics, groups and transactions of Kafka. Nothing
outside this package but server/assembly.py knows it; nothing in it knows a protocol. Talking to Kafka
(leaders, retries, idempotence, logins) is librdkafka's: needs the extra `kafka`.
"""
