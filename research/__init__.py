"""Parts of the papers that no stage of the pipeline needs: each a short implementation and a
command for its figure.

The package imports primorl and is not in the wheel.
"""
