"""Memory snapshots of torch: read without executing anything, their blocks by component, their history as a timeline.

Lives here: the unpickler for plain containers, the reader of the schema, and the rules from a stack to a component.
"""
