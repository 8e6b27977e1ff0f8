"""What is not a message, in one compacted topic of Kafka that all gateways share.

store.py       KafkaMetadata: the metadata of the engine page
layout.py      what stands in the topic
topic.py       the topic is made, or looked at
topic_end.py   where it ends
spaces.py      all records in memory, in order
changes.py     changes on their way
draft.py       what changes would do, checked against the records
follower.py    the thread that reads the topic
writer.py      the thread that writes changes
place.py       the one producer that may write, of all gateways
"""
