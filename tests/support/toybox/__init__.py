"""What the tests of driver and executors share: a trainer that trains nothing, and sweeps of it."""
