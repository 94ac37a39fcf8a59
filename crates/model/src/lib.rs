//! Nothing to link: `tests/` holds models of the protocols between two processes, explored
//! exhaustively with stateright. What goes on inside one memory (fences, orderings) is loom's
//! business, in `crates/fabric/tests` and `crates/stream/tests`.
