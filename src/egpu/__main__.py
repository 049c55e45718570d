"""`python -m egpu` is `egpu`."""

from egpu.cli import main

main()
