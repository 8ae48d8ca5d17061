"""The three interfaces of the pipeline, and what passes between them.

Others use `gate`, `resolver` and `shape`:

    gate      events → those that go on                      `Gate`, `Event`, `Admitted`
    resolver  those that go on → what their rows are now     `Resolver`, `Resolved`
    shape     what their rows are now → records              `Shape`, `Record`

`event` is what comes in, `admitted` what goes on, `resolved` what a resolver says of a key, `image` a row as it was
read, `merged` what an operator with state says of a change, and `store` what that keeps.
"""
