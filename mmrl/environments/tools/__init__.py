"""Tools that ship with mmrl, each in its own file."""
