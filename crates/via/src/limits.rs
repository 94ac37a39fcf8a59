//! The limits of a NIC.

/// Bytes of a NIC's address.
pub const ADDRESS: usize = 6;
/// Bytes of a discriminator, at most.
pub const MAX_DISCRIMINATOR: usize = 32;
/// Virtual Interfaces of a process.
pub const MAX_VIS: usize = 16384;
/// Descriptors that may be posted to one queue of a Virtual Interface and not taken back.
pub const MAX_DESCRIPTORS: usize = 1024;
/// Segments of a descriptor, behind its control segment.
pub const MAX_SEGMENTS: usize = 16;
/// Completion queues of a process.
pub const MAX_CQS: usize = 1024;
/// Entries of a completion queue.
pub const MAX_CQ_ENTRIES: usize = 1 << 20;
/// Bytes of a message.
pub const MAX_TRANSFER: usize = 1 << 20;
/// Protection tags of a process.
pub const MAX_PTAGS: usize = 4096;
