"""Bugs as patches of the suite's own honest kernel, by four people who had not seen the catalogue of bugs."""
