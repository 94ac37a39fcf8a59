//! Sockets: making and connecting them, messages, options and addresses.

use syscalls::Errno;

/// Makes a socket.
pub fn socket(family: i32, kind: i32, protocol: i32) -> Result<i32, Errno> {
    call!(socket, family, kind, protocol).map(|fd| fd as i32)
}

/// Binds.
pub fn bind(fd: i32, address: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    call!(bind, fd, address, len).map(drop)
}

/// Listens.
pub fn listen(fd: i32, backlog: i32) -> Result<(), Errno> {
    call!(listen, fd, backlog).map(drop)
}

/// Connects.
pub fn connect(fd: i32, address: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    call!(connect, fd, address, len).map(drop)
}

/// Accepts, with flags.
pub fn accept(fd: i32, flags: i32) -> Result<i32, Errno> {
    call!(accept4, fd, 0, 0, flags).map(|fd| fd as i32)
}

/// Receives into a buffer.
pub fn recv(fd: i32, buffer: *mut u8, len: usize, flags: i32) -> Result<usize, Errno> {
    call!(recvfrom, fd, buffer, len, flags, 0, 0)
}

/// Sends a buffer.
pub fn send(fd: i32, buffer: *const u8, len: usize, flags: i32) -> Result<usize, Errno> {
    call!(sendto, fd, buffer, len, flags, 0, 0)
}

/// sendmsg.
pub fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> Result<usize, Errno> {
    call!(sendmsg, fd, message, flags)
}

/// recvmsg.
pub fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> Result<usize, Errno> {
    call!(recvmsg, fd, message, flags)
}

/// A socket option of fixed size.
pub fn getsockopt<T: Copy>(fd: i32, level: i32, name: i32) -> Result<T, Errno> {
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as u32;
    call!(getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len)?;
    // SAFETY: zeroed and then filled by the kernel; the types used with it (integers, plain
    // structs) admit any bytes.
    Ok(unsafe { value.assume_init() })
}

/// A socket option of any size, as far as there is room for it: how many bytes.
pub fn getsockopt_bytes(fd: i32, level: i32, name: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut len = bytes.len() as u32;
    call!(getsockopt, fd, level, name, bytes.as_mut_ptr(), &raw mut len)?;
    Ok((len as usize).min(bytes.len()))
}

/// Whether a filter is attached to a socket.
pub fn has_filter(fd: i32) -> bool {
    // Asks for the number of its instructions; the kernel shows none of a program that is not a
    // classic one.
    let mut len = 0u32;
    let got = call!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_GET_FILTER,
        core::ptr::null_mut::<u8>(),
        &raw mut len
    );
    match got {
        Ok(_) => len > 0,
        Err(errno) => errno == Errno::EACCES,
    }
}

/// Sets a socket option of fixed size.
pub fn setsockopt<T: Copy>(fd: i32, level: i32, name: i32, value: T) -> Result<(), Errno> {
    call!(setsockopt, fd, level, name, &raw const value, size_of::<T>()).map(drop)
}

/// The local address of a socket.
pub fn getsockname(fd: i32) -> Result<libc::sockaddr_storage, Errno> {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&address) as u32;
    call!(getsockname, fd, &raw mut address, &raw mut len)?;
    Ok(address)
}

/// The address of a socket's peer.
pub fn getpeername(fd: i32) -> Result<libc::sockaddr_storage, Errno> {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&address) as u32;
    call!(getpeername, fd, &raw mut address, &raw mut len)?;
    Ok(address)
}

/// Shuts one half of a connection.
pub fn shutdown(fd: i32, how: i32) -> Result<(), Errno> {
    call!(shutdown, fd, how).map(drop)
}

/// recv() into a slice.
pub fn recv_some(fd: i32, to: &mut [u8], flags: i32) -> Result<usize, Errno> {
    recv(fd, to.as_mut_ptr(), to.len(), flags)
}
