"""The promises of SECURITY.md, one file each."""
