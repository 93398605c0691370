"""Layer-wise equivariance errors and their causes."""
