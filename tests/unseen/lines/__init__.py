"""Bugs as patches of the suite's own honest kernel, by three people who had not seen the catalogue of bugs."""
