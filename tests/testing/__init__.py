"""What the product offers to tests of programs that use it."""
