"""Records: read, write, select, compare and verify them."""
