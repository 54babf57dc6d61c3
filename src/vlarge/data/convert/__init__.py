"""Any readable dataset as LeRobot v3.0: resumable, checked frame by frame before it appears."""
