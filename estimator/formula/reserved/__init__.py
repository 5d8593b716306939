"""Reserved memory of the closed form, by replaying a stream of allocations made from its own figures."""
