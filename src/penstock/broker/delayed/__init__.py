"""Delayed messages: kept in internal topics, one for each hour, until they are due."""
