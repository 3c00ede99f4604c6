//! Numbers of the kernel's interface (`linux/netlink.h`, `linux/netfilter/nfnetlink_conntrack.h`).

/// Bytes in front of every netlink message: length, type, flags, sequence, port.
pub(super) const HEADER: usize = 16;
/// `struct nfgenmsg`, behind it: family, version, resource.
pub(super) const NFGENMSG: usize = 4;

pub(super) const NLMSG_NOOP: u16 = 1;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
pub(super) const NLMSG_OVERRUN: u16 = 4;

pub(super) const NLM_F_REQUEST: u16 = 0x01;
pub(super) const NLM_F_MULTI: u16 = 0x02;
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(super) const NLM_F_EXCL: u16 = 0x200;
pub(super) const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLM_F_CREATE: u16 = 0x400;

/// `NFNL_SUBSYS_CTNETLINK << 8`, and `IPCTNL_MSG_CT_NEW`, `…_GET`, `…_DELETE`.
pub(super) const CT_NEW: u16 = 0x100;
pub(super) const CT_GET: u16 = 0x101;
pub(super) const CT_DELETE: u16 = 0x102;

pub(super) const NLA_F_NESTED: u16 = 0x8000;
/// What is left of an attribute's type without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
pub(super) const NLA_TYPE_MASK: u16 = 0x3fff;

pub(super) const AF_UNSPEC: u8 = 0;
pub(super) const AF_INET: u8 = 2;
pub(super) const AF_INET6: u8 = 10;

pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
pub(super) const CTA_STATUS: u16 = 3;
pub(super) const CTA_PROTOINFO: u16 = 4;
pub(super) const CTA_HELP: u16 = 5;
pub(super) const CTA_NAT_SRC: u16 = 6;
pub(super) const CTA_TIMEOUT: u16 = 7;
pub(super) const CTA_MARK: u16 = 8;
pub(super) const CTA_ID: u16 = 12;
pub(super) const CTA_NAT_DST: u16 = 13;
pub(super) const CTA_TUPLE_MASTER: u16 = 14;
pub(super) const CTA_SEQ_ADJ_ORIG: u16 = 15;
pub(super) const CTA_SEQ_ADJ_REPLY: u16 = 16;
pub(super) const CTA_ZONE: u16 = 18;
pub(super) const CTA_MARK_MASK: u16 = 21;
pub(super) const CTA_LABELS: u16 = 22;
pub(super) const CTA_SYNPROXY: u16 = 24;
pub(super) const CTA_FILTER: u16 = 25;
pub(super) const CTA_STATUS_MASK: u16 = 26;
pub(super) const CTA_TIMESTAMP_EVENT: u16 = 27;

pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;
pub(super) const CTA_TUPLE_ZONE: u16 = 3;

pub(super) const CTA_IP_V4_SRC: u16 = 1;
pub(super) const CTA_IP_V4_DST: u16 = 2;
pub(super) const CTA_IP_V6_SRC: u16 = 3;
pub(super) const CTA_IP_V6_DST: u16 = 4;

pub(super) const CTA_PROTO_NUM: u16 = 1;
pub(super) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(super) const CTA_PROTO_DST_PORT: u16 = 3;
pub(super) const CTA_PROTO_ICMP_ID: u16 = 4;
pub(super) const CTA_PROTO_ICMP_TYPE: u16 = 5;
pub(super) const CTA_PROTO_ICMP_CODE: u16 = 6;
pub(super) const CTA_PROTO_ICMPV6_ID: u16 = 7;
pub(super) const CTA_PROTO_ICMPV6_TYPE: u16 = 8;
pub(super) const CTA_PROTO_ICMPV6_CODE: u16 = 9;

pub(super) const CTA_PROTOINFO_TCP: u16 = 1;
pub(super) const CTA_PROTOINFO_TCP_STATE: u16 = 1;
pub(super) const CTA_PROTOINFO_TCP_WSCALE_ORIGINAL: u16 = 2;
pub(super) const CTA_PROTOINFO_TCP_WSCALE_REPLY: u16 = 3;
pub(super) const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
pub(super) const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;

pub(super) const CTA_NAT_V4_MINIP: u16 = 1;
pub(super) const CTA_NAT_V4_MAXIP: u16 = 2;
pub(super) const CTA_NAT_PROTO: u16 = 3;
pub(super) const CTA_NAT_V6_MINIP: u16 = 4;
pub(super) const CTA_NAT_V6_MAXIP: u16 = 5;

pub(super) const CTA_PROTONAT_PORT_MIN: u16 = 1;
pub(super) const CTA_PROTONAT_PORT_MAX: u16 = 2;

pub(super) const CTA_SEQADJ_CORRECTION_POS: u16 = 1;
pub(super) const CTA_SEQADJ_OFFSET_BEFORE: u16 = 2;
pub(super) const CTA_SEQADJ_OFFSET_AFTER: u16 = 3;

pub(super) const CTA_SYNPROXY_ISN: u16 = 1;
pub(super) const CTA_SYNPROXY_ITS: u16 = 2;
pub(super) const CTA_SYNPROXY_TSOFF: u16 = 3;

pub(super) const CTA_FILTER_ORIG_FLAGS: u16 = 1;
pub(super) const CTA_FILTER_REPLY_FLAGS: u16 = 2;
/// Of `CTA_FILTER_ORIG_FLAGS`: compare the destination address.
pub(super) const CTA_FILTER_IP_DST: u32 = 1 << 1;
/// Compare the protocol above IP.
pub(super) const CTA_FILTER_PROTO_NUM: u32 = 1 << 3;
/// Compare the destination port.
pub(super) const CTA_FILTER_PROTO_DST_PORT: u32 = 1 << 5;
