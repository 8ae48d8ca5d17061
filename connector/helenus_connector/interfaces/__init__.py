"""The three interfaces of the pipeline, and the types that pass between them.

Others use `gate`, `resolver` and `shape`:

    gate      change events → admitted changes               `Gate`, `Event`, `AdmittedChange`
    resolver  admitted changes → current rows of their keys  `Resolver`, `ResolvedKey`
    shape     current rows → records of the data topic       `Shape`, `Record`

`event` defines the input, `admitted_change` a change that passed the gate, `resolved_key` a resolver's result for one
key, `image` a row as a read returned it, `merged_change` the result of an operator with state for one change, and
`store` the key-value store of that operator.
"""
