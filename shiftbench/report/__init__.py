"""Tables, pages and pictures: pure functions of records."""
