//! The TAP device: a network interface whose wire is a descriptor of ours. Each read takes a frame
//! that the kernel sends, each write is one that it receives. There is a [`crate::vnet`] header
//! before each.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use fabric::sys;

use crate::mac::Mac;
use crate::sys::{checked, error};

// linux/if_tun.h; libc has the flags, not the requests.
const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETOFFLOAD: u64 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u64 = 0x4004_54d8;
const TUNSETVNETLE: u64 = 0x4004_54dc;
const TUNSETCARRIER: u64 = 0x4004_54e2;
const TUN_F_CSUM: u64 = 1;
const TUN_F_TSO4: u64 = 2;
const TUN_F_TSO6: u64 = 4;
const TUN_F_TSO_ECN: u64 = 8;
const TUN_F_USO4: u64 = 0x20;
const TUN_F_USO6: u64 = 0x40;

/// An interface that lives as long as this.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// Makes an interface, or takes one that was made for us (`ip tuntap add`), with an address and
    /// an MTU, and switches it on. With `offload`, the kernel leaves segments and checksums to the
    /// receiver.
    pub fn open(name: &str, mac: Mac, mtu: u32, offload: bool) -> io::Result<Tap> {
        let fd = sys::open(c"/dev/net/tun", libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC, 0)
            .map_err(error)?;
        // SAFETY: the kernel has just given it to us.
        let file = unsafe { File::from_raw_fd(fd) };
        let tap = Tap { file, name: name.to_string() };
        let mut request = tap.request();
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        sys::ioctl(tap.fd(), TUNSETIFF, &mut request).map_err(error)?;
        let mut size = crate::vnet::LEN as i32;
        sys::ioctl(tap.fd(), TUNSETVNETHDRSZ, &mut size).map_err(error)?;
        sys::ioctl(tap.fd(), TUNSETVNETLE, &mut 1).map_err(error)?;
        let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        // UDP's segments are newer than the rest (Linux 6.2).
        let most = [tcp | TUN_F_USO4 | TUN_F_USO6, tcp];
        let wanted: &[u64] = if offload { &most } else { &[0] };
        let mut set = wanted.iter().map(|flags| tap.set(TUNSETOFFLOAD, *flags));
        checked(set.find(|done| *done >= 0).unwrap_or(-1))?;
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).map_err(error)?;
        // SAFETY: as above.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut request = tap.request();
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        for (to, from) in address.sa_data.iter_mut().zip(mac.0) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        sys::ioctl(socket.as_raw_fd(), libc::SIOCSIFHWADDR, &mut request).map_err(error)?;
        request = tap.request();
        request.ifr_ifru.ifru_mtu = mtu as i32;
        sys::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU, &mut request).map_err(error)?;
        request = tap.request();
        sys::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request).map_err(error)?;
        // SAFETY: SIOCGIFFLAGS has set the flags.
        request.ifr_ifru.ifru_flags = unsafe { request.ifr_ifru.ifru_flags } | libc::IFF_UP as i16;
        sys::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &mut request).map_err(error)?;
        Ok(tap)
    }

    /// Switches the carrier on or off.
    pub fn set_carrier(&self, on: bool) -> io::Result<()> {
        sys::ioctl(self.fd(), TUNSETCARRIER, &mut i32::from(on)).map_err(error)
    }

    /// Takes a frame that the kernel sends; None if there is none.
    #[inline(always)]
    pub fn read(&self, frame: &mut [u8]) -> Option<usize> {
        sys::read(self.fd(), frame).ok()
    }

    /// Hands the kernel a frame that is in parts, its offload header first; false if it does not
    /// take it.
    #[inline(always)]
    pub fn write<const N: usize>(&self, parts: [&[u8]; N]) -> bool {
        (&self.file).write_vectored(&parts.map(IoSlice::new)).is_ok()
    }

    /// Hands the kernel a frame in two parts, of which the second may change meanwhile.
    ///
    /// # Safety
    /// `rest` must be valid for `len` bytes of reads by the kernel.
    pub unsafe fn write_parts(&self, first: &[u8], rest: *const u8, len: usize) -> bool {
        let parts = [
            libc::iovec { iov_base: first.as_ptr() as *mut _, iov_len: first.len() },
            libc::iovec { iov_base: rest as *mut _, iov_len: len },
        ];
        // SAFETY: both parts are valid, as the caller vouches.
        unsafe { libc::writev(self.fd(), parts.as_ptr(), 2) >= 0 }
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn set(&self, request: u64, value: u64) -> isize {
        // SAFETY: these requests take a number.
        unsafe { libc::ioctl(self.fd(), request, value) as isize }
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: all zeroes are a request without a name.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte is left for the zero at the end.
        for (to, from) in request.ifr_name.iter_mut().take(15).zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }
}
