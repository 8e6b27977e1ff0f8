"""Transactions of the Kafka engine: stage, decide, apply in one transaction of Kafka.

transactions.py   KafkaTransactions: the transactions of the engine page
rows.py           what the metadata knows of them: states, tasks, places of what was staged
staging.py        staged batches in `_penstock.staged`
once.py           one transaction of Kafka per name, whichever gateways try
journal.py        `_penstock.transactions`: who tries, and what is committed
committed.py      the names of committed ones, in memory
producers.py      a bounded number of transactional producers
filling.py        batches into a transaction of Kafka
own_topics.py     the two topics
"""
