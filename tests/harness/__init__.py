"""What the black-box tests stand on: modes, processes, ports, reports of the library, and the check that nothing is left."""
