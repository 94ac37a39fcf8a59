//! Wires of kernel TCP alone.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use crate::link::Wire;
use crate::session::Sockets;

/// Kernel TCP, whatever is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Sockets for Tcp {
    fn wire(&self, socket: TcpStream, _shunt: bool) -> io::Result<Arc<dyn Wire>> {
        Ok(Arc::new(Plain(socket)))
    }
}

struct Plain(TcpStream);

impl Wire for Plain {
    fn send(&self, mut parts: &mut [IoSlice]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match (&self.0).write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut parts, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&self, to: &mut [u8]) -> io::Result<()> {
        (&self.0).read_exact(to)
    }

    fn close(&self) {
        let _ = self.0.shutdown(Shutdown::Both); // it may have ended by itself
    }

    fn way(&self) -> &'static str {
        "tcp"
    }
}
