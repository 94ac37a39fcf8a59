//! The path that a program chooses for a socket: through memory where that is possible, or by TCP.

/// Which way a socket's bytes may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Path {
    /// Through memory where that can be, else by TCP.
    #[default]
    Auto,
    /// By TCP, past Shunt, even where the program runs under it.
    Tcp,
}
