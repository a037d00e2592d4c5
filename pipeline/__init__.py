"""One module per DVC stage: read params, call one function of the library, write files, log."""
