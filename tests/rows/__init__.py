"""One test for each row of the catalogue of faults, most of them on SQLite on one host."""
