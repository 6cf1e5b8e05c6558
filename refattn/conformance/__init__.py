"""The suite as pytest items, one for each case: `pytest --attention module:callable --pyargs refattn.conformance`."""
