//! Connections, and the addresses that they are made with.

use core::ffi::c_ulong;

use via::abi::{NetAddress, Return, ViAttributes};
use via::connect::{self, Address};
use via::cq::Until;

use crate::{Handle, told};

/// Where the bytes of a `VIP_NET_ADDRESS` begin.
const HEAD: usize = 4;

/// Reads an address of the program.
///
/// # Safety
/// `from` is null or points to an address with all bytes that it says it has.
pub unsafe fn read(from: *const NetAddress) -> Result<Address, Return> {
    if from.is_null() {
        return Err(Return::InvalidParameter);
    }
    // SAFETY: the caller vouches for the address; programs do not align it.
    let (host, discriminator) = unsafe {
        (
            usize::from((&raw const (*from).host_address_len).read_unaligned()),
            usize::from((&raw const (*from).discriminator_len).read_unaligned()),
        )
    };
    // SAFETY: as above.
    let bytes = unsafe { core::slice::from_raw_parts(from.cast::<u8>().add(HEAD), host + discriminator) };
    Address::new(&bytes[..host], &bytes[host..])
}

/// Writes an address where the program wants it.
///
/// # Safety
/// `to` may be written, with room for what the address has.
unsafe fn write(to: *mut NetAddress, address: &Address) {
    let (host, discriminator) = (address.host(), address.discriminator());
    // SAFETY: the caller vouches for it; programs do not align it.
    unsafe {
        (&raw mut (*to).host_address_len).write_unaligned(host.len() as u16);
        (&raw mut (*to).discriminator_len).write_unaligned(discriminator.len() as u16);
        let bytes = to.cast::<u8>().add(HEAD);
        bytes.copy_from_nonoverlapping(host.as_ptr(), host.len());
        bytes.add(host.len()).copy_from_nonoverlapping(discriminator.as_ptr(), discriminator.len());
    }
}

/// # Safety
/// `at` points to an address; the others may be written, `from` with room for an address; it and
/// `attributes` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectWait(
    nic: Handle,
    at: *const NetAddress,
    millis: c_ulong,
    from: *mut NetAddress,
    attributes: *mut ViAttributes,
    to: *mut Handle,
) -> Return {
    if to.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the caller vouches for `at`.
    let asked = unsafe { read(at) }.and_then(|at| connect::wait(nic, &at, Until::after(millis)));
    match asked {
        Ok(asked) => {
            // SAFETY: the caller vouches for those that are not null.
            unsafe {
                if !from.is_null() {
                    write(from, &asked.from);
                }
                if !attributes.is_null() {
                    attributes.write(asked.attributes);
                }
                to.write(asked.handle);
            }
            Return::Success
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipConnectAccept(request: Handle, vi: Handle) -> Return {
    told(connect::accept(request, vi))
}

#[unsafe(no_mangle)]
pub extern "C" fn VipConnectReject(request: Handle) -> Return {
    told(connect::reject(request))
}

/// # Safety
/// `from` and `to` point to addresses; `attributes` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectRequest(
    vi: Handle,
    from: *const NetAddress,
    to: *const NetAddress,
    millis: c_ulong,
    attributes: *mut ViAttributes,
) -> Return {
    if millis == 0 {
        return Return::InvalidParameter;
    }
    // SAFETY: the caller vouches for both.
    let addresses = unsafe { read(from).and_then(|from| Ok((from, read(to)?))) };
    let connected = addresses.and_then(|(from, to)| connect::request(vi, &from, &to, Until::after(millis)));
    // SAFETY: the caller vouches for `attributes`.
    unsafe { learn(attributes, connected) }
}

/// # Safety
/// `to` is null or may be written.
unsafe fn learn(to: *mut ViAttributes, connected: Result<ViAttributes, Return>) -> Return {
    match connected {
        Ok(attributes) => {
            if !to.is_null() {
                // SAFETY: the caller vouches for it.
                unsafe { to.write(attributes) };
            }
            Return::Success
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipDisconnect(vi: Handle) -> Return {
    told(via::vi::disconnect(vi))
}

/// # Safety
/// `from` and `to` point to addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerRequest(
    vi: Handle,
    from: *const NetAddress,
    to: *const NetAddress,
    millis: c_ulong,
) -> Return {
    // SAFETY: the caller vouches for both.
    let addresses = unsafe { read(from).and_then(|from| Ok((from, read(to)?))) };
    told(addresses.and_then(|(from, to)| connect::request_peer(vi, &from, &to, Until::after(millis))))
}

/// # Safety
/// `attributes` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerDone(vi: Handle, attributes: *mut ViAttributes) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { learn(attributes, connect::peer_done(vi)) }
}

/// # Safety
/// `attributes` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerWait(vi: Handle, attributes: *mut ViAttributes) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { learn(attributes, connect::peer_wait(vi)) }
}
