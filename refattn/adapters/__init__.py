"""One file for each public library; the library is imported inside the call."""
