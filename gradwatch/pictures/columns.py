"""The columns of a table that a picture needs."""

from gradwatch.errors import ConfigurationError
from gradwatch.tables import Cell, Table


def choose(table: Table, names: tuple[str, ...]) -> list[tuple[Cell, ...]]:
    """Give the rows with only the named columns, in their order.

    Args:
        table: The table.
        names: Columns.

    Raises:
        ConfigurationError: If a column is missing.
    """
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise ConfigurationError(
            f"table {table.name!r} cannot be drawn without the column {missing[0]!r}; "
            f"it has {', '.join(table.columns)}"
        )
    order = [table.columns.index(name) for name in names]
    return [tuple(row[index] for index in order) for row in table.rows]
