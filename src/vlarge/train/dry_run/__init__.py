"""What a run will take on any number of processes, found on one: the real plan, in which nothing is computed.

traffic: counts collectives, imagined or real. imagined: tensors without numbers, in a group without other processes.
memory: bytes that live at a time. case: the model and the samples, of a dataset or assumed. rehearsal: one process's
optimizer step. forecast: those that stand for all; report: for people and machines.
"""
