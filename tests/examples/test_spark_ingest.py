"""The Spark example takes the columns that the entry maps; Spark itself is no dependency and is not
run here.
"""

import pytest

from examples.spark_ingest import mapped
from primorl.base.errors import PipelineError
from tests.projects import from_plain, project_settings


def test_the_columns_of_the_entry_are_taken_and_no_others() -> None:
    params = from_plain(project_settings("csv-log"))
    columns, keys = mapped(params)
    names = "patient stay time glucose insulin_on_board meal dose reward"
    assert set(columns) == set(names.split())
    assert keys == ["patient", "stay", "time"]
    with pytest.raises(PipelineError, match=r"datasets/pendulum-replay\.yaml: source: "):
        mapped(from_plain(project_settings()))
