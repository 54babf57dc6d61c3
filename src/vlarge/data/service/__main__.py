"""Runs a node's data service; the rank that needs it starts it."""

from vlarge.data.service.process import main

main()
