"""π0.5: vision tower, prefix transformer, action expert with adaptive RMSNorm, flow matching."""
