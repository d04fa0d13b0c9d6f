"""Data as people have it: folders, tables and arrays, read alike in a simulation and at a site."""
