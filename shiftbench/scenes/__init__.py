"""The rendered world of the data set `scenes`."""
