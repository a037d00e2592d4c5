"""Sort a log that outgrew one machine with Spark, for `source: tabular` with `sorted: true`.

python examples/spark_ingest.py SOURCE TARGET [--csv] [--files 16]

SOURCE and TARGET are folders that Spark can reach (file:, s3a:, hdfs:, abfss:). Run it in the
project: params.yaml chooses the dataset, whose entry names the columns. docs/how-to/spark.md says
what the files must be like. Both folders hold private rows, and so do Spark's temporary files.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from primorl.base import PipelineError
from primorl.config.datasets import TabularDataset
from primorl.config.params import Params, load
from primorl.data.sources.logs import fields_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ID_DIGITS = 12  # to which ingest pads ids of digits only


def main() -> None:
    """Read, sort and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="the log, a folder or a pattern of Parquet files")
    parser.add_argument("target", help="a folder that is not there yet")
    parser.add_argument("--csv", action="store_true", help="SOURCE has CSV with a header")
    parser.add_argument(
        "--files", type=int, default=16, help="how many files to write; up to about 1 GB each"
    )
    arguments = parser.parse_args()
    try:
        params = load()
        columns, keys = mapped(params)
    except PipelineError as wrong:
        sys.exit(f"error: {wrong}")
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.session.timeZone": "UTC",  # a local hour that comes twice would be out of order
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    if arguments.csv:
        assert isinstance(params.chosen, TabularDataset)
        delimiter = params.chosen.options.csv.delimiter
        log = spark.read.csv(arguments.source, header=True, inferSchema=True, sep=delimiter)
    else:
        log = spark.read.parquet(arguments.source)
    in_order(log, columns, keys, arguments.files).write.option("compression", "zstd").parquet(
        arguments.target
    )


def mapped(params: Params) -> tuple[list[str], list[str]]:
    """The columns that the entry maps, and of these the keys that rows are sorted by: unit,
    trajectory and order.
    """
    if not isinstance(params.chosen, TabularDataset):
        raise PipelineError(
            f"datasets/{params.dataset}.yaml: source: found another than tabular, which reads logs"
        )
    columns = params.chosen.options.columns
    named = [field.column for field in fields_of(columns)]
    keys = [columns.unit or columns.trajectory, columns.trajectory, columns.order]
    return list(dict.fromkeys(named)), list(dict.fromkeys(keys))


def in_order(log: "DataFrame", columns: list[str], keys: list[str], files: int) -> "DataFrame":
    """The mapped columns alone; all rows of a unit in one file, files and rows in ascending order
    of the keys.
    """
    *ids, order = keys
    padded = {name: as_ingest_writes_it(log[f"`{name}`"]) for name in ids}
    chosen = log.select(
        *(padded[name].alias(name) if name in padded else log[f"`{name}`"] for name in columns)
    )
    return chosen.repartitionByRange(files, _quoted(ids[0])).sortWithinPartitions(
        *map(_quoted, [*ids, order])
    )


def as_ingest_writes_it(identity: "Column") -> Any:
    """Ids of digits only are padded with zeros, so that the order of text is that of numbers."""
    from pyspark.sql import functions

    text = identity.cast("string")
    short = text.rlike("^[0-9]+$") & (functions.length(text) < ID_DIGITS)
    return functions.when(short, functions.lpad(text, ID_DIGITS, "0")).otherwise(text)


def _quoted(name: str) -> str:
    return f"`{name}`"


if __name__ == "__main__":
    main()
