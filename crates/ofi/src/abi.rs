//! The part of libfabric's binary interface that links use, as its manual pages (fabric(7),
//! fi_getinfo(3), fi_endpoint(3), fi_cm(3), fi_rma(3), fi_msg(3), fi_cq(3), fi_eq(3), fi_mr(3)) and
//! headers have it since 1.8; later versions add members at the ends of what the library allocates,
//! and functions at the ends of tables, whose first word is their size. All calls but those in
//! [`crate::library`] are inline functions in C, which call by these tables. Check the [`size`] of
//! a table before you use a late entry of it; the entries here are the first ones. A test compares
//! these layouts with the headers that are installed.

use std::ffi::{c_char, c_int, c_void};

/// The version whose rules we ask for: Debian 12's libfabric is 1.17, and 2.x still follows them.
pub const VERSION: u32 = 1 << 16 | 17;

pub const EP_MSG: u32 = 1;

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const NUMERICHOST: u64 = 1 << 55;
/// The address that is passed is this host's.
pub const SOURCE: u64 = 1 << 57;
/// A mode: operations with remote completion data consume a receive buffer.
pub const RX_CQ_DATA: u64 = 1 << 56;
/// A mode: operations that complete need a [`Context`] of their own.
pub const CONTEXT: u64 = 1 << 59;
pub const CONTEXT2: u64 = 1 << 52;

pub const MR_LOCAL: c_int = 1 << 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;

/// Writes become visible after writes, sends after writes, and writes after sends.
pub const ORDER_WAW: u64 = 1 << 4;
pub const ORDER_SAW: u64 = 1 << 7;
pub const ORDER_SAS: u64 = 1 << 8;

pub const THREAD_SAFE: u32 = 1;
pub const RM_ENABLED: u32 = 2;

pub const CONTROL_GETWAIT: c_int = 5;
pub const CONTROL_ENABLE: c_int = 6;

pub const WAIT_FD: u32 = 3;
pub const CQ_FORMAT_DATA: u32 = 3;

pub const EVENT_CONNREQ: u32 = 1;
pub const EVENT_CONNECTED: u32 = 2;
pub const EVENT_SHUTDOWN: u32 = 3;

/// Errors of libfabric's own; the others are errno's.
pub const EAVAIL: isize = 259;

/// The beginning of every object.
#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: *const OpsFid,
}

#[repr(C)]
pub struct OpsFid {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: u32,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut Domain,
    pub name: *mut c_char,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut Fabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
}

#[repr(C)]
pub struct Fabric {
    pub fid: Fid,
    pub ops: *const OpsFabric,
}

#[repr(C)]
pub struct OpsFabric {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
    pub passive_ep: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut PassiveEp, *mut c_void) -> c_int,
    pub eq_open: unsafe extern "C" fn(*mut Fabric, *mut EqAttr, *mut *mut Eq, *mut c_void) -> c_int,
    pub wait_open: usize,
    pub trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct Domain {
    pub fid: Fid,
    pub ops: *const OpsDomain,
    pub mr: *const OpsMr,
}

#[repr(C)]
pub struct OpsDomain {
    pub size: usize,
    pub av_open: usize,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct OpsMr {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut Mr,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub struct Mr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct Ep {
    pub fid: Fid,
    pub ops: usize,
    pub cm: *const OpsCm,
    pub msg: *const OpsMsg,
    pub rma: *const OpsRma,
}

#[repr(C)]
pub struct PassiveEp {
    pub fid: Fid,
    pub ops: usize,
    pub cm: *const OpsCm,
}

#[repr(C)]
pub struct OpsCm {
    pub size: usize,
    pub setname: usize,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    pub getpeer: usize,
    pub connect: unsafe extern "C" fn(*mut Ep, *const c_void, *const c_void, usize) -> c_int,
    pub listen: unsafe extern "C" fn(*mut PassiveEp) -> c_int,
    pub accept: unsafe extern "C" fn(*mut Ep, *const c_void, usize) -> c_int,
    pub reject: unsafe extern "C" fn(*mut PassiveEp, *mut Fid, *const c_void, usize) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut Ep, u64) -> c_int,
}

#[repr(C)]
pub struct OpsMsg {
    pub size: usize,
    pub recv: unsafe extern "C" fn(*mut Ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    pub recvv: usize,
    pub recvmsg: usize,
    pub send: usize,
    pub sendv: usize,
    pub sendmsg: unsafe extern "C" fn(*mut Ep, *const Msg, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut Ep, *const c_void, usize, u64) -> isize,
}

#[repr(C)]
pub struct Msg {
    pub msg_iov: *const libc::iovec,
    pub desc: *const *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct OpsRma {
    pub size: usize,
    pub read: usize,
    pub readv: usize,
    pub readmsg: usize,
    pub write: usize,
    pub writev: usize,
    pub writemsg: unsafe extern "C" fn(*mut Ep, *const MsgRma, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut Ep, *const c_void, usize, u64, u64, u64) -> isize,
}

#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub struct MsgRma {
    pub msg_iov: *const libc::iovec,
    pub desc: *const *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// Room that some providers need for each operation until it is complete.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Context {
    pub internal: [*mut c_void; 8],
}

#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct Eq {
    pub fid: Fid,
    pub ops: *const OpsEq,
}

#[repr(C)]
pub struct OpsEq {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Eq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut Eq, *mut EqErrEntry, u64) -> isize,
}

/// An event of a connection; the peer's words follow it.
#[repr(C)]
pub struct EqCmEntry {
    pub fid: *mut Fid,
    pub info: *mut Info,
}

#[repr(C)]
pub struct EqErrEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct Cq {
    pub fid: Fid,
    pub ops: *const OpsCq,
}

#[repr(C)]
pub struct OpsCq {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub readfrom: usize,
    pub readerr: unsafe extern "C" fn(*mut Cq, *mut CqErrEntry, u64) -> isize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CqEntry {
    pub context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct CqErrEntry {
    pub context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    /// Later versions have more here.
    pub more: [u64; 4],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::process::{Command, Stdio};

    /// Pairs of a struct and member as C has them, and the place of the member in Rust.
    macro_rules! places {
        ($($c:literal $rust:ident { $($member:literal $field:ident),* $(,)? })*) => {
            [$($(($c, $member, offset_of!($rust, $field)),)*)*]
        };
    }

    /// The C compiler prints the places of members, from the headers of the libfabric that is
    /// installed (Debian: libfabric-dev).
    #[test]
    fn members_are_where_the_headers_have_them() {
        let places = places! {
            "fid" Fid { "context" context, "ops" ops }
            "fi_ops" OpsFid { "close" close, "bind" bind, "control" control }
            "fi_tx_attr" TxAttr { "msg_order" msg_order, "inject_size" inject_size, "size" size }
            "fi_rx_attr" RxAttr { "mode" mode, "size" size }
            "fi_ep_attr" EpAttr { "type" kind, "max_msg_size" max_msg_size, "max_order_waw_size" max_order_waw_size }
            "fi_domain_attr" DomainAttr {
                "name" name, "threading" threading, "data_progress" data_progress, "resource_mgmt" resource_mgmt, "mr_mode" mr_mode,
                "cq_data_size" cq_data_size,
            }
            "fi_fabric_attr" FabricAttr { "name" name, "prov_name" prov_name, "prov_version" prov_version }
            "fi_info" Info {
                "next" next, "caps" caps, "mode" mode, "addr_format" addr_format, "src_addr" src_addr, "dest_addr" dest_addr, "handle" handle,
                "tx_attr" tx_attr, "rx_attr" rx_attr, "ep_attr" ep_attr, "domain_attr" domain_attr, "fabric_attr" fabric_attr,
            }
            "fid_fabric" Fabric { "ops" ops }
            "fi_ops_fabric" OpsFabric { "domain" domain, "passive_ep" passive_ep, "eq_open" eq_open, "trywait" trywait }
            "fid_domain" Domain { "ops" ops, "mr" mr }
            "fi_ops_domain" OpsDomain { "cq_open" cq_open, "endpoint" endpoint }
            "fi_ops_mr" OpsMr { "reg" reg }
            "fid_mr" Mr { "mem_desc" mem_desc, "key" key }
            "fid_ep" Ep { "cm" cm, "msg" msg, "rma" rma }
            "fid_pep" PassiveEp { "cm" cm }
            "fi_ops_cm" OpsCm {
                "getname" getname, "connect" connect, "listen" listen, "accept" accept, "reject" reject, "shutdown" shutdown,
            }
            "fi_ops_msg" OpsMsg { "recv" recv, "sendmsg" sendmsg, "inject" inject }
            "fi_msg" Msg { "msg_iov" msg_iov, "desc" desc, "iov_count" iov_count, "addr" addr, "context" context, "data" data }
            "fi_ops_rma" OpsRma { "writemsg" writemsg, "inject" inject }
            "fi_rma_iov" RmaIov { "addr" addr, "len" len, "key" key }
            "fi_msg_rma" MsgRma {
                "msg_iov" msg_iov, "desc" desc, "addr" addr, "rma_iov" rma_iov, "rma_iov_count" rma_iov_count, "context" context, "data" data,
            }
            "fi_eq_attr" EqAttr { "size" size, "wait_obj" wait_obj, "wait_set" wait_set }
            "fid_eq" Eq { "ops" ops }
            "fi_ops_eq" OpsEq { "read" read, "readerr" readerr }
            "fi_eq_cm_entry" EqCmEntry { "fid" fid, "info" info }
            "fi_eq_err_entry" EqErrEntry { "fid" fid, "err" err, "err_data_size" err_data_size }
            "fi_cq_attr" CqAttr { "size" size, "format" format, "wait_obj" wait_obj, "wait_cond" wait_cond, "wait_set" wait_set }
            "fid_cq" Cq { "ops" ops }
            "fi_ops_cq" OpsCq { "read" read, "readerr" readerr }
            "fi_cq_data_entry" CqEntry { "op_context" context, "flags" flags, "len" len, "buf" buf, "data" data }
            "fi_cq_err_entry" CqErrEntry { "err" err, "prov_errno" prov_errno, "err_data_size" err_data_size }
        };
        let constants = [
            ("FI_EP_MSG", u64::from(EP_MSG)),
            ("FI_MSG", MSG),
            ("FI_RMA", RMA),
            ("FI_WRITE", WRITE),
            ("FI_RECV", RECV),
            ("FI_SEND", SEND),
            ("FI_REMOTE_WRITE", REMOTE_WRITE),
            ("FI_FENCE", FENCE),
            ("FI_COMPLETION", COMPLETION),
            ("FI_INJECT", INJECT),
            ("FI_NUMERICHOST", NUMERICHOST),
            ("FI_SOURCE", SOURCE),
            ("FI_RX_CQ_DATA", RX_CQ_DATA),
            ("FI_CONTEXT", CONTEXT),
            ("FI_CONTEXT2", CONTEXT2),
            ("FI_MR_LOCAL", MR_LOCAL as u64),
            ("FI_MR_VIRT_ADDR", MR_VIRT_ADDR as u64),
            ("FI_MR_ALLOCATED", MR_ALLOCATED as u64),
            ("FI_MR_PROV_KEY", MR_PROV_KEY as u64),
            ("FI_ORDER_WAW", ORDER_WAW),
            ("FI_ORDER_SAW", ORDER_SAW),
            ("FI_ORDER_SAS", ORDER_SAS),
            ("FI_THREAD_SAFE", u64::from(THREAD_SAFE)),
            ("FI_RM_ENABLED", u64::from(RM_ENABLED)),
            ("FI_GETWAIT", CONTROL_GETWAIT as u64),
            ("FI_ENABLE", CONTROL_ENABLE as u64),
            ("FI_WAIT_FD", u64::from(WAIT_FD)),
            ("FI_CQ_FORMAT_DATA", u64::from(CQ_FORMAT_DATA)),
            ("FI_CONNREQ", u64::from(EVENT_CONNREQ)),
            ("FI_CONNECTED", u64::from(EVENT_CONNECTED)),
            ("FI_SHUTDOWN", u64::from(EVENT_SHUTDOWN)),
            ("FI_EAVAIL", EAVAIL as u64),
        ];
        let mut program = String::from(
            "#include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_cm.h>\n\
             #include <rdma/fi_rma.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_errno.h>\n",
        );
        for (structure, member, offset) in places {
            program += &format!(
                "_Static_assert(offsetof(struct {structure}, {member}) == {offset}, \"{structure}.{member}\");\n"
            );
        }
        for (name, value) in constants {
            program += &format!("_Static_assert((unsigned long long){name} == {value}ull, \"{name}\");\n");
        }
        let mut compiler = Command::new("cc")
            .args(["-x", "c", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("there is a C compiler");
        std::io::Write::write_all(&mut compiler.stdin.take().expect("piped"), program.as_bytes())
            .expect("it reads");
        assert!(compiler.wait().expect("it ends").success(), "see what the compiler says");
    }
}
