"""Every case of refattn by every kernel that takes it, under several schedules: `python -m gpu.conformance`.

jobs       what is run, and the selection by rule that covers all kernels, features and schedules
workers    processes that run it, with deadlines
results    a file of JSON lines that a stopped run continues, and the summary

These modules use the judge of refattn; the kernels and what launches them know nothing of it.
"""
