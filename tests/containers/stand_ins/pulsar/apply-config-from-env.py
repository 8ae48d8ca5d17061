#!/usr/bin/python3
"""As the official image's: variables that are named as keys of a file are written into it."""

import os
import sys

for name in sys.argv[1:]:
    with open(name) as file:
        lines = file.read().splitlines()
    keys = [line.lstrip("#").partition("=")[0].strip() for line in lines]
    lines = [f"{key}={os.environ[key]}" if key in os.environ else line for key, line in zip(keys, lines, strict=True)]
    with open(name, "w") as file:
        file.write("\n".join(lines) + "\n")
