"""Reports: pure functions of results, as tables, pages and figures."""
