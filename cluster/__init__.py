"""Where the work runs: Ray actors that each own an engine, and the pool that feeds them. Imports only `tiercache`."""
