"""One module per dataset format: it indexes and reads; write.py writes LeRobot v3.0."""
