"""Programs that make parts of the documentation. They are not part of the wheel."""
