"""The three interfaces of the pipeline, and what passes between them.

Others use `gate`, `resolver` and `shape`:

    gate      events → those that go on                      `Gate`, `Event`, `AdmittedChange`
    resolver  those that go on → what their rows are now     `Resolver`, `ResolvedKey`
    shape     what their rows are now → records              `Shape`, `Record`

`event` has what comes in, `admitted_change` what goes on, `resolved_key` what a resolver says of a key, `image` a row
as it was read, `merged_change` what an operator with state says of a change, and `store` what that keeps.
"""
