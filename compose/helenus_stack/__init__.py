"""Real servers on this machine: Cassandra with CDC, Kafka and a schema registry as local processes on loopback.

`helenus_stack.stack.Stack` is the Python interface, `helenus_stack.cli` the command `helenus-stack`.
"""
