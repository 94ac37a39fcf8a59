//! The options of Shunt: one table, from which everything that names an option is made.
//!
//! [`TABLE`] has the name, the allowed values and the effect of each option. The environment
//! (`SHUNT_*`), the configuration files, the flags of `shunt run`, the help, the man page and the
//! shell completions are all made from it.
//!
//! Two very different programs read it. The command `shunt` is ordinary Rust. `libshunt.so` reads
//! its options inside a foreign program, possibly before the first constructor has run; so nothing
//! in this crate allocates, prints, or touches the operating system. The caller of [`from_environ`]
//! passes the environment and the contents of the files, and a callback that receives every name or
//! value that is not understood: no mistake is passed over in silence.
//!
//! [`rules`] is a small language for one of the options: which connections are accelerated.
//!
//! To add an option: one field in [`Options`] and one entry in [`TABLE`].
#![no_std]
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![allow(clippy::large_enum_variant)] // texts are inline because nothing here may allocate

mod kind;
mod networks;
mod parse;
mod problem;
mod read;
pub mod rules;
mod settings;
mod table;
mod text;

pub use kind::{Choice, Kind, Value};
pub use networks::Networks;
pub use problem::{Fault, Problem, Source};
pub use read::{ConfigFiles, change, config_files, find, from_environ, rule_files};
pub use rules::{Ends, Role, Rule, RuleFault};
pub use settings::{Fabric, LogLevel, LogTarget, PathMode, Profile, RuleSource, Stream};
pub use table::{Opt, Options, Scope, TABLE};
pub use text::{Bytes, LongText, Text};
