from tests.pipeline.conftest import no_verdict, small, without_groups

__all__ = ["no_verdict", "small", "without_groups"]
