//! From a received datagram to a request that may be carried out, or the reason why not.

use crate::header::{Flags, HEADER_BYTES, HeaderView, MAGIC, Op, REPLY_BIT, Status, VERSION};
use crate::limits::{Limits, RangeError, SectorRange};
use crate::reply::ReplyHeader;

/// A request that respects the protocol and the device's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The client's; goes into every reply.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
}

/// What a valid request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Tell size and limits.
    Info,
    /// Read up to [`Limits::max_read_bytes`].
    Read(SectorRange, Durability),
    /// Write up to [`Limits::datagram_bytes`]; exactly as many bytes follow the header.
    Write(SectorRange, Durability),
    /// Make completed writes durable.
    Flush,
}

impl Command {
    /// The op that asks for it.
    pub const fn op(&self) -> Op {
        match self {
            Self::Info => Op::Info,
            Self::Read(..) => Op::Read,
            Self::Write(..) => Op::Write,
            Self::Flush => Op::Flush,
        }
    }
}

/// Whether the disk may answer out of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It may.
    Cached,
    /// FUA: it must go to the medium.
    ForceUnitAccess,
}

/// What is wrong with a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Shorter than a header.
    Short,
    /// Not "NBLK".
    Magic,
    /// The reply bit is set: it is an answer, not a request.
    ReplyBit,
    /// A version this server does not speak.
    Version,
    /// An op this server does not know.
    Op,
    /// A flag bit that is not defined.
    Flags,
    /// A READ or WRITE of no bytes.
    Empty,
    /// Offset or length is not a whole number of sectors.
    Unaligned,
    /// The length is more than the op may ask.
    TooLong,
    /// The bytes behind the header are not what op and length say.
    Body,
    /// A WRITE to a read-only device.
    ReadOnly,
    /// The range ends behind the device (or behind 2^64).
    OutOfRange,
}

impl Fault {
    /// The status that tells the client.
    pub const fn status(self) -> Status {
        match self {
            Self::ReadOnly => Status::ReadOnly,
            Self::OutOfRange => Status::OutOfRange,
            Self::Short
            | Self::Magic
            | Self::ReplyBit
            | Self::Version
            | Self::Op
            | Self::Flags
            | Self::Empty
            | Self::Unaligned
            | Self::TooLong
            | Self::Body => Status::BadRequest,
        }
    }
}

impl From<RangeError> for Fault {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::Empty => Self::Empty,
            RangeError::Unaligned => Self::Unaligned,
            RangeError::TooLong => Self::TooLong,
            RangeError::OutOfRange => Self::OutOfRange,
        }
    }
}

/// A datagram that is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub fault: Fault,
    /// The reply to send, or `None` for what is dropped in silence (see the crate's documentation).
    pub answer: Option<ReplyHeader>,
}

impl Refused {
    const fn silently(fault: Fault) -> Self {
        Self { fault, answer: None }
    }

    /// The status of the refusal, sent or not.
    pub const fn status(&self) -> Status {
        self.fault.status()
    }
}

/// Checks a received datagram against the protocol and the device.
///
/// Shape is judged before permission, and permission before place, so that a client's fault is
/// named the same way on every device.
///
/// # Errors
/// [`Refused`] names the fault and carries the reply, if there is to be one.
pub fn check(datagram: &[u8], limits: &Limits) -> Result<Request, Refused> {
    check_first_piece(datagram, datagram.len(), limits)
}

/// As [`check`], for a datagram of `datagram_bytes` bytes of which only the beginning is at hand: see
/// [`HeaderView::of_first_piece`].
///
/// # Errors
/// As [`check`].
pub fn check_first_piece(
    first_piece: &[u8],
    datagram_bytes: usize,
    limits: &Limits,
) -> Result<Request, Refused> {
    let view = recognise(first_piece, datagram_bytes)?;
    match command(&view, limits) {
        Ok(command) => Ok(Request { cookie: view.cookie(), command }),
        Err(fault) => Err(Refused { fault, answer: Some(ReplyHeader::echo(&view, fault.status())) }),
    }
}

/// What a server that does not speak a datagram's version (on this device, or at all) does with it: what is
/// a request is answered, in version 1, and everything else is dropped.
pub fn refuse_version(datagram: &[u8]) -> Refused {
    match recognise(datagram, datagram.len()) {
        Ok(view) => {
            Refused { fault: Fault::Version, answer: Some(ReplyHeader::echo(&view, Fault::Version.status())) }
        }
        Err(refused) => refused,
    }
}

/// Whether it is a netblk request, of whatever version.
fn recognise(first_piece: &[u8], datagram_bytes: usize) -> Result<HeaderView<'_>, Refused> {
    let Ok(view) = HeaderView::of_first_piece(first_piece, datagram_bytes) else {
        return Err(refuse_short(first_piece));
    };
    if view.magic() != MAGIC {
        return Err(Refused::silently(Fault::Magic));
    }
    if view.op() & REPLY_BIT != 0 {
        return Err(Refused::silently(Fault::ReplyBit));
    }
    Ok(view)
}

fn command(view: &HeaderView<'_>, limits: &Limits) -> Result<Command, Fault> {
    if view.version() != VERSION {
        return Err(Fault::Version);
    }
    let op = Op::try_from(view.op()).map_err(|_| Fault::Op)?;
    let flags = Flags::from_bits(view.flags()).ok_or(Fault::Flags)?;
    let durability = if flags.fua() { Durability::ForceUnitAccess } else { Durability::Cached };
    let body_bytes = view.body_bytes();
    let command = match op {
        Op::Info => Command::Info,
        Op::Flush => Command::Flush,
        Op::Read => {
            let range = limits.range(view.offset(), view.length(), limits.max_read_bytes())?;
            Command::Read(range, durability)
        }
        Op::Write => {
            let range = limits.range(view.offset(), view.length(), limits.datagram_bytes());
            // Whether the place exists is asked last: after the body, and after the permission.
            if let Err(error) = range
                && error != RangeError::OutOfRange
            {
                return Err(error.into());
            }
            if body_bytes != view.length() as usize {
                return Err(Fault::Body);
            }
            if limits.read_only() {
                return Err(Fault::ReadOnly);
            }
            return Ok(Command::Write(range?, durability));
        }
    };
    if body_bytes != 0 {
        return Err(Fault::Body);
    }
    Ok(command)
}

/// Bytes up to and including the op: the least that can say "I am a netblk request".
const RECOGNISABLE_BYTES: usize = 6;

/// A datagram that ends inside its header is answered if what is there says that it is a netblk
/// request; the fields that are missing count as zero.
fn refuse_short(datagram: &[u8]) -> Refused {
    let mut padded = [0; HEADER_BYTES];
    // A piece that is longer than its datagram is no one's.
    let Some(beginning) = padded.get_mut(..datagram.len()) else { return Refused::silently(Fault::Short) };
    beginning.copy_from_slice(datagram);
    match HeaderView::new(&padded) {
        Ok(view)
            if datagram.len() >= RECOGNISABLE_BYTES
                && view.magic() == MAGIC
                && view.op() & REPLY_BIT == 0 =>
        {
            Refused { fault: Fault::Short, answer: Some(ReplyHeader::echo(&view, Status::BadRequest)) }
        }
        _ => Refused::silently(Fault::Short),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::RequestHeader;
    use proptest::prelude::*;

    fn limits() -> Limits {
        Limits::new(512, 1000, 1500, false).unwrap()
    }

    fn read_only() -> Limits {
        Limits::new(512, 1000, 1500, true).unwrap()
    }

    fn header(op: Op, offset: u64, length: u32) -> Vec<u8> {
        RequestHeader { op, flags: Flags::NONE, cookie: 0xC00C_1E55, offset, length }.to_bytes().to_vec()
    }

    fn write(offset: u64, length: u32) -> Vec<u8> {
        let mut datagram = header(Op::Write, offset, length);
        datagram.resize(HEADER_BYTES + length as usize, 0xA5);
        datagram
    }

    #[track_caller]
    fn refused(datagram: &[u8], limits: &Limits, fault: Fault, status: Status) {
        let refused = check(datagram, limits).unwrap_err();
        assert_eq!(refused.fault, fault);
        let answer = refused.answer.expect("this fault is answered");
        assert_eq!(answer.status, status);
        assert_eq!(refused.status(), status);
    }

    #[track_caller]
    fn dropped(datagram: &[u8], fault: Fault) {
        assert_eq!(check(datagram, &limits()), Err(Refused::silently(fault)));
    }

    #[test]
    fn a_version_nobody_speaks_is_refused_in_version_1() {
        let mut other = header(Op::Read, 512, 1024);
        other[4] = 2;
        other.resize(258, 0);
        let Refused { fault, answer: Some(answer) } = refuse_version(&other) else { panic!("no answer") };
        assert_eq!((fault, answer.status, answer.cookie), (Fault::Version, Status::BadRequest, 0xC00C_1E55));
        assert_eq!(answer.to_bytes()[4], VERSION);
        assert_eq!(refuse_version(&[0; 66]), Refused::silently(Fault::Magic));
    }

    #[test]
    fn a_jumbo_write_is_judged_by_its_first_piece() {
        let jumbo = Limits::new(512, 1000, 9000, false).unwrap();
        let whole = write(0, 4096);
        let judged = |bytes| check_first_piece(&whole[..2000], bytes, &jumbo);
        assert!(matches!(judged(30 + 4096), Ok(Request { command: Command::Write(..), .. })));
        assert_eq!(judged(30 + 4095).unwrap_err().fault, Fault::Body);
        assert_eq!(judged(1999).unwrap_err(), Refused::silently(Fault::Short));
    }

    #[test]
    fn good_requests_of_every_kind() {
        let command = |datagram: &[u8]| check(datagram, &limits()).unwrap().command;
        assert_eq!(command(&header(Op::Info, 0, 0)), Command::Info);
        assert_eq!(command(&header(Op::Flush, 0, 0)), Command::Flush);
        assert!(
            matches!(command(&header(Op::Read, 512, 16 * 1024)), Command::Read(range, Durability::Cached)
            if range.first_sector() == 1 && range.sectors() == 32)
        );
        assert!(
            matches!(command(&write(998 * 512, 1024)), Command::Write(range, _) if range.first_sector() == 998)
        );
        let mut fua = write(0, 512);
        fua[7] = 1;
        assert!(matches!(command(&fua), Command::Write(_, Durability::ForceUnitAccess)));
        assert_eq!(check(&fua, &limits()).unwrap().cookie, 0xC00C_1E55);
    }

    #[test]
    fn noise_and_answers_are_dropped_in_silence() {
        dropped(b"", Fault::Short);
        dropped(b"hello", Fault::Short);
        dropped(&[0; 200], Fault::Magic);
        let mut wrong_magic = header(Op::Info, 0, 0);
        wrong_magic[0] ^= 1;
        dropped(&wrong_magic, Fault::Magic);
        let mut reply = header(Op::Read, 0, 512);
        reply[5] |= REPLY_BIT;
        dropped(&reply, Fault::ReplyBit);
        dropped(&reply[..29], Fault::Short);
        dropped(&header(Op::Read, 0, 512)[..5], Fault::Short);
    }

    #[test]
    fn a_short_request_is_answered_with_what_it_held() {
        let whole = header(Op::Read, 1024, 512);
        refused(&whole[..29], &limits(), Fault::Short, Status::BadRequest);
        refused(&whole[..6], &limits(), Fault::Short, Status::BadRequest);
        let answer = check(&whole[..16], &limits()).unwrap_err().answer.unwrap();
        assert_eq!((answer.cookie, answer.offset), (0xC00C_1E55, 0));
    }

    #[test]
    fn bad_requests_of_every_kind() {
        let bad = |datagram: &[u8], fault| refused(datagram, &limits(), fault, Status::BadRequest);
        let mut version = header(Op::Info, 0, 0);
        version[4] = 2;
        bad(&version, Fault::Version);
        for op in [0, 5, 0x7F] {
            let mut unknown = header(Op::Info, 0, 0);
            unknown[5] = op;
            bad(&unknown, Fault::Op);
        }
        let mut flags = header(Op::Read, 0, 512);
        flags[6] = 0x80;
        bad(&flags, Fault::Flags);
        bad(&header(Op::Read, 0, 0), Fault::Empty);
        bad(&header(Op::Write, 0, 0), Fault::Empty);
        bad(&header(Op::Read, 1, 512), Fault::Unaligned);
        bad(&header(Op::Read, 0, 513), Fault::Unaligned);
        bad(&write(256, 512), Fault::Unaligned);
        bad(&header(Op::Read, 0, 16 * 1024 + 512), Fault::TooLong);
        bad(&header(Op::Read, 0, u32::MAX - 511), Fault::TooLong);
        bad(&write(0, 1536), Fault::TooLong);
        let mut longer = write(0, 512);
        longer.push(0);
        bad(&longer, Fault::Body);
        bad(&write(0, 512)[..HEADER_BYTES + 511], Fault::Body);
        bad(&header(Op::Write, 0, 512), Fault::Body);
        for op in [Op::Info, Op::Flush] {
            let mut tail = header(op, 0, 0);
            tail.push(0);
            bad(&tail, Fault::Body);
        }
        let mut tail = header(Op::Read, 0, 512);
        tail.push(0);
        bad(&tail, Fault::Body);
    }

    #[test]
    fn ranges_behind_the_device() {
        let out = |datagram: &[u8]| refused(datagram, &limits(), Fault::OutOfRange, Status::OutOfRange);
        out(&header(Op::Read, 1000 * 512, 512));
        out(&header(Op::Read, 999 * 512, 1024));
        out(&header(Op::Read, u64::MAX - 511, 512));
        out(&header(Op::Read, u64::MAX - 1023, 1024));
        out(&write(999 * 512, 1024));
    }

    #[test]
    fn read_only_devices_refuse_writes_and_only_writes() {
        refused(&write(0, 512), &read_only(), Fault::ReadOnly, Status::ReadOnly);
        refused(&write(1 << 40, 512), &read_only(), Fault::ReadOnly, Status::ReadOnly);
        refused(&write(1, 512), &read_only(), Fault::Unaligned, Status::BadRequest);
        for datagram in [header(Op::Info, 0, 0), header(Op::Read, 0, 512), header(Op::Flush, 0, 0)] {
            assert!(check(&datagram, &read_only()).is_ok());
        }
    }

    /// A datagram that is nearly right: where mistakes live.
    fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
        (
            0..4usize,
            any::<u16>(),
            0..600_000u64,
            0..40_000u32,
            0..2000usize,
            proptest::option::of((0..HEADER_BYTES, any::<u8>())),
        )
            .prop_map(|(op, roundness, offset, length, body, flip)| {
                let round = |value: u64| if roundness & 1 == 0 { value / 512 * 512 } else { value };
                let mut datagram = header(Op::ALL[op], round(offset), round(u64::from(length)) as u32);
                let body = if roundness & 2 == 0 { round(u64::from(length)) as usize } else { body };
                if op == 2 || roundness & 4 != 0 {
                    datagram.resize(HEADER_BYTES + body, 0);
                }
                if let Some((at, value)) = flip {
                    datagram[at] = value;
                }
                datagram
            })
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(datagram: Vec<u8>, read_only: bool) {
            let _ = check(&datagram, &Limits::new(512, 1000, 1500, read_only).unwrap());
        }

        #[test]
        fn whatever_passes_is_safe_to_carry_out(datagram in nearly_right(), read_only: bool) {
            let limits = Limits::new(512, 1000, 1500, read_only).unwrap();
            match check(&datagram, &limits) {
                Ok(Request { command: Command::Read(range, _), .. }) => {
                    prop_assert!(range.length() <= limits.max_read_bytes());
                    prop_assert!(range.offset() + u64::from(range.length()) <= limits.size_bytes());
                    prop_assert_eq!(datagram.len(), HEADER_BYTES);
                }
                Ok(Request { command: Command::Write(range, _), .. }) => {
                    prop_assert!(!read_only);
                    prop_assert!(range.length() <= limits.datagram_bytes());
                    prop_assert!(range.offset() + u64::from(range.length()) <= limits.size_bytes());
                    prop_assert_eq!(datagram.len(), HEADER_BYTES + range.length() as usize);
                }
                Ok(_) => prop_assert_eq!(datagram.len(), HEADER_BYTES),
                Err(refused) => {
                    prop_assert_ne!(refused.status(), Status::Ok);
                    if let Some(answer) = refused.answer {
                        // No answer can be taken for a request, here or by another server.
                        let bytes = answer.to_bytes();
                        prop_assert!(check(&bytes, &limits).unwrap_err().answer.is_none());
                    }
                }
            }
        }
    }
}
