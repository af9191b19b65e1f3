"""One test for each row of the catalogue of faults that concerns SQLite on one host."""
