"""The sections of `gpu/device_check.py`: each yields rows, dictionaries that go to a table."""
