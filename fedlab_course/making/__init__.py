"""Scripts that write the files that ship with the package, byte for byte."""
