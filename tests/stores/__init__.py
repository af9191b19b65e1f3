"""What is special to one store; every promise that all stores share is in ``tests.conformance``."""
