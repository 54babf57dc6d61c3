"""Rounds of record, train, evaluate, gate; and the report."""
