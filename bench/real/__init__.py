"""Real fleets and real servers: what their protocols cost, and what faults do to them. Programs, no sections."""
