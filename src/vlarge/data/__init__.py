"""Any robot dataset in place, as a deterministic stream of packed batches."""
