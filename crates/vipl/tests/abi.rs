//! Compares `include/vipl.h` with the library's types, and both with the layouts that programs were
//! compiled with: a C program, compiled here, prints every offset, size and constant.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use via::abi::*;

/// Compiles a C program that includes the header and prints these expressions.
fn printed(what: &str, expressions: &[&str]) -> BTreeMap<String, u64> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join(format!("{what}.c")), folder.join(what));
    let lines: String = expressions
        .iter()
        .map(|e| format!("    printf(\"%s = %llu\\n\", \"{e}\", (unsigned long long)({e}));\n"))
        .collect();
    std::fs::write(
        &source,
        format!("#include <stdio.h>\n#include \"vipl.h\"\nint main(void) {{\n{lines}    return 0;\n}}\n"),
    )
    .unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let status = Command::new("cc").arg("-I").arg(include).arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("a C compiler").success());
    let output = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    output
        .lines()
        .map(|line| line.split_once(" = ").unwrap())
        .map(|(e, value)| (e.to_owned(), value.parse().unwrap()))
        .collect()
}

#[track_caller]
fn hold(what: &str, table: &[(&str, u64)]) {
    let printed = printed(what, &table.iter().map(|row| row.0).collect::<Vec<_>>());
    for &(expression, wanted) in table {
        assert_eq!(printed[expression], wanted, "{expression}");
    }
}

macro_rules! offsets {
    ($c:literal, $rust:ty, $size:literal: $($field:literal $name:ident $at:literal),*) => {
        assert_eq!(size_of::<$rust>(), $size, $c);
        $(assert_eq!(offset_of!($rust, $name), $at, concat!($c, ".", $field));)*
        hold($c, &[(concat!("sizeof(", $c, ")"), $size), $((concat!("offsetof(", $c, ", ", $field, ")"), $at)),*]);
    };
}

#[test]
fn structures() {
    offsets!("VIP_CONTROL_SEGMENT", ControlSegment, 32: "Next" next 0, "NextHandle" next_handle 8, "SegCount" seg_count 12,
        "Control" control 14, "Reserved" reserved 16, "ImmediateData" immediate 20, "Length" length 24, "Status" status 28);
    offsets!("VIP_DATA_SEGMENT", Segment, 16: "Data" address 0, "Handle" handle 8, "Length" length 12);
    offsets!("VIP_ADDRESS_SEGMENT", Segment, 16: "Data" address 0, "Handle" handle 8, "Reserved" length 12);
    offsets!("VIP_DESCRIPTOR", Descriptor, 64: "CS" control 0, "Control" control 0, "DS" segments 32, "Data" segments 32);
    offsets!("VIP_NET_ADDRESS", NetAddress, 6: "HostAddressLen" host_address_len 0, "DiscriminatorLen" discriminator_len 2,
        "HostAddress" host_address 4);
    offsets!("VIP_NIC_ATTRIBUTES", NicAttributes, 200: "Name" name 0, "HardwareVersion" hardware_version 64,
        "ProviderVersion" provider_version 72, "NicAddressLen" nic_address_len 80, "LocalNicAddress" local_nic_address 88,
        "ThreadSafe" thread_safe 96, "MaxDiscriminatorLen" max_discriminator_len 100, "MaxRegisterBytes" max_register_bytes 104,
        "MaxRegisterRegions" max_register_regions 112, "MaxRegisterBlockBytes" max_register_block_bytes 120, "MaxVI" max_vi 128,
        "MaxDescriptorsPerQueue" max_descriptors_per_queue 136, "MaxSegmentsPerDesc" max_segments_per_desc 144, "MaxCQ" max_cq 152,
        "MaxCQEntries" max_cq_entries 160, "MaxTransferSize" max_transfer_size 168, "NativeMTU" native_mtu 176,
        "MaxPtags" max_ptags 184, "ReliabilityLevelSupport" reliability_level_support 192, "RDMAReadSupport" rdma_read_support 194);
    offsets!("VIP_VI_ATTRIBUTES", ViAttributes, 40: "ReliabilityLevel" reliability_level 0, "MaxTransferSize" max_transfer_size 8,
        "QoS" qos 16, "Ptag" ptag 24, "EnableRdmaWrite" enable_rdma_write 32, "EnableRdmaRead" enable_rdma_read 36);
    offsets!("VIP_MEM_ATTRIBUTES", MemAttributes, 16: "Ptag" ptag 0, "EnableRdmaWrite" enable_rdma_write 8,
        "EnableRdmaRead" enable_rdma_read 12);
    offsets!("VIP_ERROR_DESCRIPTOR", ErrorDescriptor, 48: "NicHandle" nic_handle 0, "ViHandle" vi_handle 8, "CQHandle" cq_handle 16,
        "DescriptorPtr" descriptor 24, "OpCode" op_code 32, "ResourceCode" resource_code 40, "ErrorCode" error_code 44);
    hold(
        "others",
        &[
            ("sizeof(VIP_PVOID64)", 8),
            ("sizeof(VIP_DESCRIPTOR_SEGMENT)", 16),
            ("offsetof(VIP_DESCRIPTOR, DS[1].Local.Length)", 60),
            ("offsetof(VIP_DESCRIPTOR, Data[1].Length)", 60),
            ("offsetof(VIP_DESCRIPTOR, DS[0].Remote.Data.AddressBits)", 32),
            ("offsetof(VIP_AUTODISCOVERY_LIST, ADAddrArray)", 8),
            ("offsetof(VIP_AUTODISCOVERY_LIST, NumAdAddrs)", 16),
            ("sizeof(VIP_ULONG)", 8),
            ("sizeof(VIP_BOOLEAN)", 4),
            ("sizeof(VIP_MEM_HANDLE)", 4),
            ("sizeof(VIP_RELIABILITY_LEVEL)", 2),
            ("sizeof(VIP_RETURN)", 4),
        ],
    );
}

#[test]
fn constants() {
    let rows: &[(&str, u64, u64)] = &[
        ("VIP_CONTROL_OP_SENDRECV", 0x0000, control::OP_SENDRECV.into()),
        ("VIP_CONTROL_OP_RDMAWRITE", 0x0001, control::OP_RDMAWRITE.into()),
        ("VIP_CONTROL_OP_RDMAREAD", 0x0002, control::OP_RDMAREAD.into()),
        ("VIP_CONTROL_OP_RESERVED", 0x0003, control::OP_RESERVED.into()),
        ("VIP_CONTROL_OP_MASK", 0x0003, control::OP_MASK.into()),
        ("VIP_CONTROL_IMMEDIATE", 0x0004, control::IMMEDIATE.into()),
        ("VIP_CONTROL_QFENCE", 0x0008, control::QFENCE.into()),
        ("VIP_CONTROL_RESERVED", 0xfff0, control::RESERVED.into()),
        ("VIP_STATUS_DONE", 0x00000001, status::DONE.into()),
        ("VIP_STATUS_FORMAT_ERROR", 0x00000002, status::FORMAT_ERROR.into()),
        ("VIP_STATUS_PROTECTION_ERROR", 0x00000004, status::PROTECTION_ERROR.into()),
        ("VIP_STATUS_LENGTH_ERROR", 0x00000008, status::LENGTH_ERROR.into()),
        ("VIP_STATUS_PARTIAL_ERROR", 0x00000010, status::PARTIAL_ERROR.into()),
        ("VIP_STATUS_DESC_FLUSHED_ERROR", 0x00000020, status::DESC_FLUSHED_ERROR.into()),
        ("VIP_STATUS_TRANSPORT_ERROR", 0x00000040, status::TRANSPORT_ERROR.into()),
        ("VIP_STATUS_RDMA_PROT_ERROR", 0x00000080, status::RDMA_PROT_ERROR.into()),
        ("VIP_STATUS_REMOTE_DESC_ERROR", 0x00000100, status::REMOTE_DESC_ERROR.into()),
        ("VIP_STATUS_ERROR_MASK", 0x000001fe, status::ERROR_MASK.into()),
        ("VIP_STATUS_OP_SEND", 0x00000000, status::OP_SEND.into()),
        ("VIP_STATUS_OP_RECEIVE", 0x00010000, status::OP_RECEIVE.into()),
        ("VIP_STATUS_OP_RDMA_WRITE", 0x00020000, status::OP_RDMA_WRITE.into()),
        ("VIP_STATUS_OP_REMOTE_RDMA_WRITE", 0x00030000, status::OP_REMOTE_RDMA_WRITE.into()),
        ("VIP_STATUS_OP_RDMA_READ", 0x00040000, status::OP_RDMA_READ.into()),
        ("VIP_STATUS_OP_MASK", 0x00070000, status::OP_MASK.into()),
        ("VIP_STATUS_IMMEDIATE", 0x00080000, status::IMMEDIATE.into()),
        ("VIP_STATUS_RESERVED", 0xfff0fe00, status::RESERVED.into()),
        ("VIP_SERVICE_UNRELIABLE", 0x01, reliability::UNRELIABLE.into()),
        ("VIP_SERVICE_RELIABLE_DELIVERY", 0x02, reliability::DELIVERY.into()),
        ("VIP_SERVICE_RELIABLE_RECEPTION", 0x04, reliability::RECEPTION.into()),
        ("VIP_SUCCESS", 0, Return::Success as u64),
        ("VIP_NOT_DONE", 1, Return::NotDone as u64),
        ("VIP_INVALID_PARAMETER", 2, Return::InvalidParameter as u64),
        ("VIP_ERROR_RESOURCE", 3, Return::ErrorResource as u64),
        ("VIP_TIMEOUT", 4, Return::Timeout as u64),
        ("VIP_REJECT", 5, Return::Reject as u64),
        ("VIP_INVALID_RELIABILITY_LEVEL", 6, Return::InvalidReliabilityLevel as u64),
        ("VIP_INVALID_MTU", 7, Return::InvalidMtu as u64),
        ("VIP_INVALID_QOS", 8, Return::InvalidQos as u64),
        ("VIP_INVALID_PTAG", 9, Return::InvalidPtag as u64),
        ("VIP_INVALID_RDMAREAD", 10, Return::InvalidRdmaRead as u64),
        ("VIP_DESCRIPTOR_ERROR", 11, Return::DescriptorError as u64),
        ("VIP_INVALID_STATE", 12, Return::InvalidState as u64),
        ("VIP_ERROR_NAMESERVICE", 13, Return::ErrorNameService as u64),
        ("VIP_NO_MATCH", 14, Return::NoMatch as u64),
        ("VIP_NOT_REACHABLE", 15, Return::NotReachable as u64),
        ("VIP_ERROR_NOT_SUPPORTED", 16, Return::ErrorNotSupported as u64),
        ("VIP_STATE_IDLE", 0, State::Idle as u64),
        ("VIP_STATE_CONNECTED", 1, State::Connected as u64),
        ("VIP_STATE_CONNECT_PENDING", 2, State::ConnectPending as u64),
        ("VIP_STATE_ERROR", 3, State::Error as u64),
        ("VIP_ERROR_POST_DESC", 0, ErrorCode::PostDesc as u64),
        ("VIP_ERROR_CONN_LOST", 1, ErrorCode::ConnLost as u64),
        ("VIP_ERROR_RECVQ_EMPTY", 2, ErrorCode::RecvqEmpty as u64),
        ("VIP_ERROR_VI_OVERRUN", 3, ErrorCode::ViOverrun as u64),
        ("VIP_ERROR_RDMAW_PROT", 4, ErrorCode::RdmawProt as u64),
        ("VIP_ERROR_RDMAW_DATA", 5, ErrorCode::RdmawData as u64),
        ("VIP_ERROR_RDMAW_ABORT", 6, ErrorCode::RdmawAbort as u64),
        ("VIP_ERROR_RDMAR_PROT", 7, ErrorCode::RdmarProt as u64),
        ("VIP_ERROR_COMP_PROT", 8, ErrorCode::CompProt as u64),
        ("VIP_ERROR_RDMA_TRANSPORT", 9, ErrorCode::RdmaTransport as u64),
        ("VIP_ERROR_CATASTROPHIC", 10, ErrorCode::Catastrophic as u64),
        ("VIP_RESOURCE_NIC", 0, ResourceCode::Nic as u64),
        ("VIP_RESOURCE_VI", 1, ResourceCode::Vi as u64),
        ("VIP_RESOURCE_CQ", 2, ResourceCode::Cq as u64),
        ("VIP_RESOURCE_DESCRIPTOR", 3, ResourceCode::Descriptor as u64),
        ("VIP_DESCRIPTOR_ALIGNMENT", 64, DESCRIPTOR_ALIGNMENT as u64),
        ("VIP_SMI_AUTODISCOVERY", 1, 1),
        ("VIP_INFINITE", u64::MAX, u64::MAX),
        ("VIP_TRUE", 1, 1),
        ("VIP_FALSE", 0, 0),
    ];
    for (name, wanted, ours) in rows {
        assert_eq!(wanted, ours, "{name}");
    }
    hold("constants", &rows.iter().map(|row| (row.0, row.1)).collect::<Vec<_>>());
}
