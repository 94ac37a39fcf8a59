//! The data that programs share with the library: descriptors, attributes, addresses, and the
//! numbers of results, states and errors, as `crates/vipl/include/vipl.h` has them (a test there
//! compares the two). Everything here is plain data that the program may change at any time, also
//! while it is posted: it is read once, by value, and checked.

use core::ffi::{c_char, c_int, c_ulong, c_ushort, c_void};

/// A descriptor's alignment, in bytes.
pub const DESCRIPTOR_ALIGNMENT: usize = 64;
/// Bytes of a segment behind the control segment.
pub const SEGMENT: usize = 16;
/// Bytes of the control segment.
pub const CONTROL_SEGMENT: usize = 32;

/// `VIP_CONTROL_SEGMENT`: the beginning of a descriptor.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControlSegment {
    /// The library's while posted.
    pub next: u64,
    /// As `next`.
    pub next_handle: u32,
    /// Segments behind this one, an address segment among them.
    pub seg_count: u16,
    /// [`control`] bits.
    pub control: u16,
    /// Must be 0.
    pub reserved: u32,
    /// Four bytes for the peer, in no byte order.
    pub immediate: u32,
    /// Sends: the sum of the data segments; when done: bytes transferred.
    pub length: u32,
    /// When done: [`status`] bits.
    pub status: u32,
}

/// A segment: `VIP_DATA_SEGMENT`, or `VIP_ADDRESS_SEGMENT`, whose last word is reserved.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address: of the own process, or, in an address segment, of the peer.
    pub address: u64,
    /// The region that it lies in.
    pub handle: u32,
    /// Bytes; 0 in an address segment.
    pub length: u32,
}

/// A descriptor with two segments; there may be more behind it.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Descriptor {
    /// Its beginning.
    pub control: ControlSegment,
    /// The segments behind that.
    pub segments: [Segment; 2],
}

/// Bits of [`ControlSegment::control`].
pub mod control {
    #![allow(missing_docs)] // names of the specification
    pub const OP_SENDRECV: u16 = 0;
    pub const OP_RDMAWRITE: u16 = 1;
    pub const OP_RDMAREAD: u16 = 2;
    pub const OP_RESERVED: u16 = 3;
    pub const OP_MASK: u16 = 3;
    pub const IMMEDIATE: u16 = 4;
    pub const QFENCE: u16 = 8;
    pub const RESERVED: u16 = 0xfff0;
}

/// Bits of [`ControlSegment::status`].
pub mod status {
    #![allow(missing_docs)] // names of the specification
    pub const DONE: u32 = 0x1;
    pub const FORMAT_ERROR: u32 = 0x2;
    pub const PROTECTION_ERROR: u32 = 0x4;
    pub const LENGTH_ERROR: u32 = 0x8;
    pub const PARTIAL_ERROR: u32 = 0x10;
    pub const DESC_FLUSHED_ERROR: u32 = 0x20;
    pub const TRANSPORT_ERROR: u32 = 0x40;
    pub const RDMA_PROT_ERROR: u32 = 0x80;
    pub const REMOTE_DESC_ERROR: u32 = 0x100;
    pub const ERROR_MASK: u32 = 0x1fe;
    pub const OP_SEND: u32 = 0;
    pub const OP_RECEIVE: u32 = 0x1_0000;
    pub const OP_RDMA_WRITE: u32 = 0x2_0000;
    pub const OP_REMOTE_RDMA_WRITE: u32 = 0x3_0000;
    pub const OP_RDMA_READ: u32 = 0x4_0000;
    pub const OP_MASK: u32 = 0x7_0000;
    pub const IMMEDIATE: u32 = 0x8_0000;
    pub const RESERVED: u32 = 0xfff0_fe00;
    /// For a receive: the message goes on in the next descriptor (CLAN's extension; one of the
    /// reserved bits).
    pub const CONTINUES: u32 = 0x10_0000;
}

/// `VIP_RETURN`: the result of a call.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // names of the specification
pub enum Return {
    Success = 0,
    NotDone = 1,
    InvalidParameter = 2,
    ErrorResource = 3,
    Timeout = 4,
    Reject = 5,
    InvalidReliabilityLevel = 6,
    InvalidMtu = 7,
    InvalidQos = 8,
    InvalidPtag = 9,
    InvalidRdmaRead = 10,
    DescriptorError = 11,
    InvalidState = 12,
    ErrorNameService = 13,
    NoMatch = 14,
    NotReachable = 15,
    ErrorNotSupported = 16,
}

/// `VIP_VI_STATE`.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // names of the specification
pub enum State {
    Idle = 0,
    Connected = 1,
    ConnectPending = 2,
    Error = 3,
}

/// `VIP_ERROR_CODE`: errors that fit no descriptor.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // names of the specification
pub enum ErrorCode {
    PostDesc = 0,
    ConnLost = 1,
    RecvqEmpty = 2,
    ViOverrun = 3,
    RdmawProt = 4,
    RdmawData = 5,
    RdmawAbort = 6,
    RdmarProt = 7,
    CompProt = 8,
    RdmaTransport = 9,
    Catastrophic = 10,
}

/// `VIP_RESOURCE_CODE`: the resource with the error.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // names of the specification
pub enum ResourceCode {
    Nic = 0,
    Vi = 1,
    Cq = 2,
    Descriptor = 3,
}

/// The meaning of a completed send (specification, section 2.5).
pub mod reliability {
    #![allow(missing_docs)] // names of the specification
    pub const UNRELIABLE: u16 = 1;
    pub const DELIVERY: u16 = 2;
    pub const RECEPTION: u16 = 4;
    pub const ALL: u16 = 7;
}

/// `VIP_NIC_ATTRIBUTES`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // names of the specification
pub struct NicAttributes {
    pub name: [c_char; 64],
    pub hardware_version: c_ulong,
    pub provider_version: c_ulong,
    pub nic_address_len: u16,
    pub local_nic_address: *const u8,
    pub thread_safe: c_int,
    pub max_discriminator_len: u16,
    pub max_register_bytes: c_ulong,
    pub max_register_regions: c_ulong,
    pub max_register_block_bytes: c_ulong,
    pub max_vi: c_ulong,
    pub max_descriptors_per_queue: c_ulong,
    pub max_segments_per_desc: c_ulong,
    pub max_cq: c_ulong,
    pub max_cq_entries: c_ulong,
    pub max_transfer_size: c_ulong,
    pub native_mtu: c_ulong,
    pub max_ptags: c_ulong,
    pub reliability_level_support: c_ushort,
    pub rdma_read_support: c_ushort,
}

/// `VIP_VI_ATTRIBUTES`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // names of the specification
pub struct ViAttributes {
    pub reliability_level: c_ushort,
    pub max_transfer_size: c_ulong,
    pub qos: *mut c_void,
    pub ptag: *mut c_void,
    pub enable_rdma_write: c_int,
    pub enable_rdma_read: c_int,
}

/// `VIP_MEM_ATTRIBUTES`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // names of the specification
pub struct MemAttributes {
    pub ptag: *mut c_void,
    pub enable_rdma_write: c_int,
    pub enable_rdma_read: c_int,
}

/// The beginning of a `VIP_NET_ADDRESS`; the host's bytes and the discriminator follow.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // names of the specification
pub struct NetAddress {
    pub host_address_len: u16,
    pub discriminator_len: u16,
    pub host_address: [u8; 1],
}

/// `VIP_ERROR_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // names of the specification
pub struct ErrorDescriptor {
    pub nic_handle: *mut c_void,
    pub vi_handle: *mut c_void,
    pub cq_handle: *mut c_void,
    pub descriptor: *mut Descriptor,
    pub op_code: c_ulong,
    pub resource_code: ResourceCode,
    pub error_code: ErrorCode,
}
