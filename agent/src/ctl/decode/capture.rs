//! Captures as tcpdump and Wireshark write them: pcap and pcapng. Only what is needed to get at the packets.

use std::time::Duration;

/// Kinds of links whose packets are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Ethernet,
    /// An IP packet without anything before it.
    Raw,
    /// Linux "any", its two forms.
    Cooked,
    Cooked2,
    /// BSD loopback.
    Null,
    Other,
}

impl Link {
    fn from_number(number: u32) -> Self {
        match number & 0xffff {
            0 => Self::Null,
            1 => Self::Ethernet,
            12 | 101 | 228 | 229 => Self::Raw,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            _ => Self::Other,
        }
    }
}

const PCAPNG: u32 = 0x0a0d_0d0a;
const PCAP_MICRO: u32 = 0xa1b2_c3d4;
const PCAP_NANO: u32 = 0xa1b2_3c4d;
/// Of a section; packets name them by number.
const INTERFACES_MAX: usize = 1024;

/// Numbers in the byte order of the machine that wrote them.
#[derive(Clone, Copy)]
struct Reader<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.first_chunk().copied()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.first_chunk().copied()?;
        Some(if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }
}

fn magic(bytes: &[u8], big: bool) -> Option<u32> {
    Reader { bytes, big }.u32()
}

/// Whether it is a capture at all.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    let known = |magic| matches!(magic, PCAPNG | PCAP_MICRO | PCAP_NANO);
    magic(bytes, true).is_some_and(known) || magic(bytes, false).is_some_and(known)
}

/// Gives each packet with its time. What is cut off at the end is left out: a capture that still runs ends so.
///
/// # Errors
/// It is none that is understood.
pub(super) fn packets(bytes: &[u8], mut each: impl FnMut(Duration, Link, &[u8])) -> Result<(), String> {
    if magic(bytes, true) == Some(PCAPNG) {
        let _ = pcapng(bytes, &mut each);
        return Ok(());
    }
    let found = [true, false].into_iter().find_map(|big| match magic(bytes, big)? {
        PCAP_MICRO => Some((big, 1_000)),
        PCAP_NANO => Some((big, 1)),
        _ => None,
    });
    let (big, unit) = found.ok_or("not a capture")?;
    let mut reader = Reader { bytes, big };
    let _ = pcap(&mut reader, unit, &mut each);
    Ok(())
}

fn pcap(reader: &mut Reader<'_>, unit: u32, each: &mut impl FnMut(Duration, Link, &[u8])) -> Option<()> {
    // Magic, version, zone, accuracy, longest packet.
    reader.take(20)?;
    let link = Link::from_number(reader.u32()?);
    loop {
        let (seconds, fraction, len) = (reader.u32()?, reader.u32()?, reader.length()?);
        reader.u32()?;
        let packet = reader.take(len)?;
        each(Duration::new(seconds.into(), fraction.checked_mul(unit)?.min(999_999_999)), link, packet);
    }
}

fn pcapng(bytes: &[u8], each: &mut impl FnMut(Duration, Link, &[u8])) -> Option<()> {
    let mut rest = Reader { bytes, big: false };
    let mut interfaces: Vec<(Link, u64)> = Vec::new();
    loop {
        let start = rest;
        let kind = rest.u32()?;
        if kind == PCAPNG {
            // The length before it is in the order that it tells.
            let order = rest.bytes.get(4..8)?;
            rest = Reader { big: order == [0x1a, 0x2b, 0x3c, 0x4d], ..start };
            rest.u32()?;
            interfaces.clear();
        }
        let len = rest.length()?.checked_sub(12)?;
        let mut body = Reader { bytes: rest.take(len)?, ..rest };
        rest.take(4)?;
        match kind {
            1 => {
                let link = Link::from_number(body.u16()?.into());
                body.take(6)?;
                if interfaces.len() < INTERFACES_MAX {
                    interfaces.push((link, ticks(body).unwrap_or(1_000_000)));
                }
            }
            6 => {
                let (interface, high, low, len) = (body.length()?, body.u32()?, body.u32()?, body.length()?);
                body.u32()?;
                let (link, ticks) = interfaces.get(interface).copied().unwrap_or((Link::Other, 1_000_000));
                let at = u64::from(high) << 32 | u64::from(low);
                let fraction = u128::from(at % ticks) * 1_000_000_000 / u128::from(ticks);
                let at = Duration::new(at / ticks, u32::try_from(fraction).unwrap_or_default());
                each(at, link, body.take(len.min(body.bytes.len()))?);
            }
            3 => {
                let len = body.length()?;
                let (link, _) = interfaces.first().copied().unwrap_or((Link::Other, 1_000_000));
                each(Duration::ZERO, link, body.take(len.min(body.bytes.len()))?);
            }
            _ => {}
        }
    }
}

/// The option `if_tsresol`: ticks of a second.
fn ticks(mut options: Reader<'_>) -> Option<u64> {
    loop {
        let (code, len) = (options.u16()?, usize::from(options.u16()?));
        let value = options.take(len.next_multiple_of(4))?;
        match (code, value.first()?) {
            (9, exponent) if exponent & 0x80 != 0 => return 2_u64.checked_pow(u32::from(exponent & 0x7f)),
            (9, exponent) => return 10_u64.checked_pow(u32::from(*exponent)),
            (0, _) => return None,
            _ => {}
        }
    }
}
