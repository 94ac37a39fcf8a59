//! ioctl() on a connection.

use super::What::{self, Follow, Pass, Tcp};

/// A request.
pub struct Row {
    pub number: u32,
    pub name: &'static str,
    pub what: What,
}

/// What is done when a program makes a request on a connection.
pub fn of(number: u32) -> What {
    if let Some(row) = TABLE.iter().find(|row| row.number == number) {
        return row.what;
    }
    if FAMILIES.iter().any(|family| (family.first..=family.last).contains(&number)) { Pass } else { Tcp }
}

/// Whether the request, on a descriptor that is no connection, is about one whose number stands in
/// its argument, and where.
pub fn names_another(number: u32) -> Option<Place> {
    match number {
        NBD_SET_SOCK => Some(Place::Argument),
        SIOCKCMATTACH => Some(Place::Pointed),
        _ => None,
    }
}

/// Where a request has the number of a descriptor.
pub enum Place {
    /// It is the argument.
    Argument,
    /// The argument points to it.
    Pointed,
}

/// A network block device takes a connection over.
const NBD_SET_SOCK: u32 = 0xab00;
/// A multiplexor of the kernel takes a connection over.
const SIOCKCMATTACH: u32 = 0x89e0;

/// Requests that no socket has, or that only use one to speak of something else: interfaces,
/// routes.
struct Family {
    first: u32,
    last: u32,
}

const FAMILIES: &[Family] = &[
    // Of terminals: isatty() and its like ask for them, and get ENOTTY.
    Family { first: 0x5400, last: 0x54ff },
    // A driver's own, of interfaces.
    Family { first: 0x89f0, last: 0x89ff },
    // Of wireless interfaces.
    Family { first: 0x8b00, last: 0x8bff },
];

const fn row(number: u32, name: &'static str, what: What) -> Row {
    Row { number, name, what }
}

/// Every request that sockets know.
pub static TABLE: &[Row] = &[
    // SIOCINQ is the same.
    row(0x541b, "FIONREAD", Follow),
    // SIOCOUTQ is the same.
    row(0x5411, "TIOCOUTQ", Follow),
    row(0x5421, "FIONBIO", Follow),
    row(0x5450, "FIONCLEX", Pass),
    row(0x5451, "FIOCLEX", Pass),
    row(0x5452, "FIOASYNC", Tcp),
    row(0x5460, "FIOQSIZE", Pass),
    // Who gets SIGIO and SIGURG: both come by tcp only.
    row(0x8901, "FIOSETOWN", Pass),
    row(0x8902, "SIOCSPGRP", Pass),
    row(0x8903, "FIOGETOWN", Pass),
    row(0x8904, "SIOCGPGRP", Pass),
    row(0x8905, "SIOCATMARK", Follow),
    // When the last packet came.
    row(0x8906, "SIOCGSTAMP_OLD", Tcp),
    row(0x8907, "SIOCGSTAMPNS_OLD", Tcp),
    row(0x8010_8906, "SIOCGSTAMP_NEW", Tcp),
    row(0x8010_8907, "SIOCGSTAMPNS_NEW", Tcp),
    // What is in a ring is not unsent.
    row(0x894b, "SIOCOUTQNSD", Pass),
    row(0x894c, "SIOCGSKNS", Pass),
    // Interfaces, routes, addresses: a socket is only the way to ask.
    row(0x890b, "SIOCADDRT", Pass),
    row(0x890c, "SIOCDELRT", Pass),
    row(0x890d, "SIOCRTMSG", Pass),
    row(0x8910, "SIOCGIFNAME", Pass),
    row(0x8911, "SIOCSIFLINK", Pass),
    row(0x8912, "SIOCGIFCONF", Pass),
    row(0x8913, "SIOCGIFFLAGS", Pass),
    row(0x8914, "SIOCSIFFLAGS", Pass),
    row(0x8915, "SIOCGIFADDR", Pass),
    row(0x8916, "SIOCSIFADDR", Pass),
    row(0x8917, "SIOCGIFDSTADDR", Pass),
    row(0x8918, "SIOCSIFDSTADDR", Pass),
    row(0x8919, "SIOCGIFBRDADDR", Pass),
    row(0x891a, "SIOCSIFBRDADDR", Pass),
    row(0x891b, "SIOCGIFNETMASK", Pass),
    row(0x891c, "SIOCSIFNETMASK", Pass),
    row(0x891d, "SIOCGIFMETRIC", Pass),
    row(0x891e, "SIOCSIFMETRIC", Pass),
    row(0x891f, "SIOCGIFMEM", Pass),
    row(0x8920, "SIOCSIFMEM", Pass),
    row(0x8921, "SIOCGIFMTU", Pass),
    row(0x8922, "SIOCSIFMTU", Pass),
    row(0x8923, "SIOCSIFNAME", Pass),
    row(0x8924, "SIOCSIFHWADDR", Pass),
    row(0x8925, "SIOCGIFENCAP", Pass),
    row(0x8926, "SIOCSIFENCAP", Pass),
    row(0x8927, "SIOCGIFHWADDR", Pass),
    row(0x8929, "SIOCGIFSLAVE", Pass),
    row(0x8930, "SIOCSIFSLAVE", Pass),
    row(0x8931, "SIOCADDMULTI", Pass),
    row(0x8932, "SIOCDELMULTI", Pass),
    row(0x8933, "SIOCGIFINDEX", Pass),
    row(0x8934, "SIOCSIFPFLAGS", Pass),
    row(0x8935, "SIOCGIFPFLAGS", Pass),
    row(0x8936, "SIOCDIFADDR", Pass),
    row(0x8937, "SIOCSIFHWBROADCAST", Pass),
    row(0x8938, "SIOCGIFCOUNT", Pass),
    row(0x8940, "SIOCGIFBR", Pass),
    row(0x8941, "SIOCSIFBR", Pass),
    row(0x8942, "SIOCGIFTXQLEN", Pass),
    row(0x8943, "SIOCSIFTXQLEN", Pass),
    row(0x8946, "SIOCETHTOOL", Pass),
    row(0x8947, "SIOCGMIIPHY", Pass),
    row(0x8948, "SIOCGMIIREG", Pass),
    row(0x8949, "SIOCSMIIREG", Pass),
    row(0x894a, "SIOCWANDEV", Pass),
    row(0x8953, "SIOCDARP", Pass),
    row(0x8954, "SIOCGARP", Pass),
    row(0x8955, "SIOCSARP", Pass),
    row(0x8960, "SIOCDRARP", Pass),
    row(0x8961, "SIOCGRARP", Pass),
    row(0x8962, "SIOCSRARP", Pass),
    row(0x8970, "SIOCGIFMAP", Pass),
    row(0x8971, "SIOCSIFMAP", Pass),
    row(0x8980, "SIOCADDDLCI", Pass),
    row(0x8981, "SIOCDELDLCI", Pass),
    row(0x8982, "SIOCGIFVLAN", Pass),
    row(0x8983, "SIOCSIFVLAN", Pass),
    row(0x8990, "SIOCBONDENSLAVE", Pass),
    row(0x8991, "SIOCBONDRELEASE", Pass),
    row(0x8992, "SIOCBONDSETHWADDR", Pass),
    row(0x8993, "SIOCBONDSLAVEINFOQUERY", Pass),
    row(0x8994, "SIOCBONDINFOQUERY", Pass),
    row(0x8995, "SIOCBONDCHANGEACTIVE", Pass),
    row(0x89a0, "SIOCBRADDBR", Pass),
    row(0x89a1, "SIOCBRDELBR", Pass),
    row(0x89a2, "SIOCBRADDIF", Pass),
    row(0x89a3, "SIOCBRDELIF", Pass),
    row(0x89b0, "SIOCSHWTSTAMP", Pass),
    row(0x89b1, "SIOCGHWTSTAMP", Pass),
];
