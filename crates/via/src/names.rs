//! The name service: hosts' names, and the addresses of their NICs. A host has one NIC for each of
//! its IPv4 addresses. Names are resolved as everywhere on the host (getaddrinfo).

use core::ffi::c_void;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::Return;
use crate::limits::ADDRESS;
use crate::opened;
use crate::process::PerProcess;

/// NIC handles whose name service is in use.
static READY: PerProcess<Mutex<Option<HashSet<usize>>>> = PerProcess::new(Mutex::new(None));

/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { READY.renew(Mutex::new(None)) };
}

fn ready() -> MutexGuard<'static, Option<HashSet<usize>>> {
    READY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `VipNSInit`. Any number of times.
pub fn init(nic: *mut c_void) -> Result<(), Return> {
    opened::check(nic)?;
    ready().get_or_insert_with(HashSet::new).insert(nic.addr());
    Ok(())
}

/// `VipNSShutdown`. `ErrorNameService` without [`init`].
pub fn shutdown(nic: *mut c_void) -> Result<(), Return> {
    opened::check(nic)?;
    let was = ready().as_mut().is_some_and(|ready| ready.remove(&nic.addr()));
    if was { Ok(()) } else { Err(Return::ErrorNameService) }
}

fn check(nic: *mut c_void) -> Result<(), Return> {
    opened::check(nic)?;
    let is = ready().as_ref().is_some_and(|ready| ready.contains(&nic.addr()));
    if is { Ok(()) } else { Err(Return::ErrorNameService) }
}

/// `VipNSGetHostByName`: the address of NIC number `index` of a host. `ErrorNameService` if there
/// is no such host, or NIC.
pub fn by_name(nic: *mut c_void, name: &str, index: usize) -> Result<[u8; ADDRESS], Return> {
    check(nic)?;
    let found = (name, 0u16).to_socket_addrs().map_err(|_| Return::ErrorNameService)?;
    let mut addresses: Vec<Ipv4Addr> = Vec::new();
    for address in found {
        if let IpAddr::V4(address) = address.ip()
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    let [a, b, c, d] = addresses.get(index).ok_or(Return::ErrorNameService)?.octets();
    Ok([0, 0, a, b, c, d])
}

/// `VipNSGetHostByAddr`: the name of the host with this address, or the address in figures if it
/// has none.
pub fn by_address(nic: *mut c_void, address: [u8; ADDRESS]) -> Result<String, Return> {
    check(nic)?;
    let [_, _, a, b, c, d] = address;
    let host = Ipv4Addr::new(a, b, c, d);
    let storage = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(host.octets()) },
        sin_zero: [0; 8],
    };
    let mut name = [0 as libc::c_char; 256];
    // SAFETY: an address and a buffer, with their lengths.
    let failed = unsafe {
        libc::getnameinfo(
            (&raw const storage).cast(),
            size_of_val(&storage) as u32,
            name.as_mut_ptr(),
            name.len() as u32,
            core::ptr::null_mut(),
            0,
            0,
        )
    };
    if failed != 0 {
        return Err(Return::ErrorNameService);
    }
    let name: Vec<u8> = name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8(name).map_err(|_| Return::ErrorNameService)
}
