//! The simulator: a model of the Linux kernel, as far as Shunt and the programs of the simulation
//! call it. Tests only.

pub mod kernel;
