use super::*;
use crate::v2::header::{HEADER_BYTES, RequestHeader};
use crate::v2::hello::HELLO_BODY_BYTES;
use crate::v2::limits::Device;
use crate::v2::reply::ReplyHeader;
use crate::v2::{ConnectBody, HelloBody};
use proptest::prelude::*;

fn device(sector_bytes: u32) -> Device {
    Device {
        sector_bytes,
        sectors: 4000,
        read_only: false,
        max_write_bytes: 4096,
        max_discard_bytes: 1 << 20,
        max_write_zeroes_bytes: 1 << 19,
    }
}

fn limits() -> Limits {
    Limits::new(device(512), 1500).unwrap()
}

/// A request that is right for `limits()` on any device of 4000 sectors.
fn good(op: Op) -> RequestHeader {
    let session = if matches!(op, Op::Hello | Op::Connect) { 0 } else { 77 };
    let length =
        if matches!(op, Op::Info | Op::Flush | Op::Close | Op::Hello | Op::Connect) { 0 } else { 1024 };
    let sequence = u64::from(op.is_numbered()) * 5;
    RequestHeader { sequence, ..RequestHeader::new(op, session, 0xC00C_1E55, 0, length) }
}

fn body_of(header: &RequestHeader) -> usize {
    match header.op {
        Op::Write => (header.length - u32::from(header.part) * 1024).min(1024) as usize,
        Op::Hello | Op::Connect => HELLO_BODY_BYTES,
        _ => 0,
    }
}

fn judged(header: RequestHeader, body_bytes: usize, limits: &Limits) -> Result<Command, Fault> {
    let body = vec![0; body_bytes];
    let datagram = [&header.seal(None, &body)[..], &body].concat();
    check(&HeaderView::new(&datagram).unwrap(), limits).map(|request| {
        assert_eq!(request.cookie, 0xC00C_1E55);
        request.command
    })
}

#[track_caller]
fn refused(header: RequestHeader, body_bytes: usize, fault: Fault) {
    assert_eq!(judged(header, body_bytes, &limits()), Err(fault), "{header:?}");
}

#[test]
fn good_requests_of_every_kind() {
    for op in Op::ALL {
        let command = judged(good(op), body_of(&good(op)), &limits()).unwrap();
        assert_eq!(command.op(), op);
    }
    assert_eq!(
        judged(good(Op::Hello), HELLO_BODY_BYTES, &limits()),
        Ok(Command::Hello(HelloBody { client_nonce: [0; 16] }))
    );
    assert!(matches!(
        judged(good(Op::Connect), HELLO_BODY_BYTES, &limits()),
        Ok(Command::Connect(ConnectBody { epoch: 0, replaces: 0, .. }))
    ));
    assert!(matches!(
        judged(RequestHeader { flags: Flags::FUA, ..good(Op::WriteZeroes) }, 0, &limits()),
        Ok(Command::WriteZeroes(range, Durability::ForceUnitAccess, 5)) if range.length() == 1024
    ));
}

#[test]
fn a_write_in_parts_says_of_each_how_long_it_is() {
    // 2560 bytes: 1024, 1024 and 512.
    let part = |part, parts| RequestHeader { length: 2560, part, parts, ..good(Op::Write) };
    for (number, bytes) in [(0, 1024), (1, 1024), (2, 512)] {
        let command = judged(part(number, 3), bytes, &limits()).unwrap();
        assert!(matches!(command, Command::Write(range, _, part)
            if range.length() == 2560 && part == PartOfWrite { sequence: 5, part: number, parts: 3 }));
    }
    refused(part(2, 3), 1024, Fault::Body);
    refused(part(0, 3), 512, Fault::Body);
    refused(part(3, 3), 512, Fault::Part);
    refused(part(0, 2), 1024, Fault::Part);
    refused(part(0, 0), 1024, Fault::Part);
    refused(part(u16::MAX, u16::MAX), 1024, Fault::Part);
}

#[test]
fn sectors_longer_than_a_datagram() {
    let limits = Limits::new(device(4096), 1500).unwrap();
    let write = RequestHeader { length: 4096, part: 3, parts: 4, ..good(Op::Write) };
    assert!(judged(write, 1024, &limits).is_ok());
    assert_eq!(judged(RequestHeader { length: 1024, ..good(Op::Read) }, 0, &limits), Err(Fault::Unaligned));
    assert!(judged(RequestHeader { length: 16384, ..good(Op::Read) }, 0, &limits).is_ok());
}

#[test]
fn a_jumbo_write_is_judged_by_its_first_piece() {
    let limits = Limits::new(device(512), 9000).unwrap();
    let write = RequestHeader { length: 4096, ..good(Op::Write) };
    let piece = [&write.seal(None, &[0; 4096])[..], &[0; 1900]].concat();
    let view = HeaderView::of_first_piece(&piece, HEADER_BYTES + 4096).unwrap();
    assert!(
        matches!(check(&view, &limits).unwrap().command, Command::Write(range, ..) if range.length() == 4096)
    );
    let short = HeaderView::of_first_piece(&piece, HEADER_BYTES + 4095).unwrap();
    assert_eq!(check(&short, &limits), Err(Fault::Body));
}

#[test]
fn bad_requests_of_every_kind() {
    for op in Op::ALL {
        let right = body_of(&good(op));
        refused(good(op), right + 1, Fault::Body);
        if op != Op::Write {
            refused(RequestHeader { part: 1, ..good(op) }, right, Fault::Part);
            refused(RequestHeader { parts: 2, ..good(op) }, right, Fault::Part);
            refused(RequestHeader { parts: 0, ..good(op) }, right, Fault::Part);
        }
        let number = if op.is_numbered() { 0 } else { 1 };
        refused(RequestHeader { sequence: number, ..good(op) }, right, Fault::Sequence);
    }
    for op in [Op::Hello, Op::Connect] {
        refused(RequestHeader { session: 1, ..good(op) }, HELLO_BODY_BYTES, Fault::Session);
        refused(good(op), HELLO_BODY_BYTES - 1, Fault::Body);
    }
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
        refused(RequestHeader { length: 0, ..good(op) }, 0, Fault::Empty);
        refused(RequestHeader { length: 100, ..good(op) }, 100, Fault::Unaligned);
        refused(RequestHeader { offset: 100, ..good(op) }, 1024, Fault::Unaligned);
        refused(RequestHeader { length: 0xffff_fe00, ..good(op) }, 0, Fault::TooLong);
        refused(RequestHeader { offset: 4000 * 512, ..good(op) }, body_of(&good(op)), Fault::OutOfRange);
        refused(RequestHeader { offset: u64::MAX - 511, ..good(op) }, body_of(&good(op)), Fault::OutOfRange);
    }
    let mut datagram = good(Op::Info).seal(None, &[]);
    datagram[6] = 0x80;
    assert_eq!(check(&HeaderView::new(&datagram).unwrap(), &limits()), Err(Fault::Flags));
    datagram[5] = 8;
    assert_eq!(check(&HeaderView::new(&datagram).unwrap(), &limits()), Err(Fault::Op));
}

#[test]
fn ability_comes_before_permission_and_permission_before_place() {
    let plain = Device { max_discard_bytes: 0, max_write_zeroes_bytes: 0, ..device(512) };
    let unable = Limits::new(Device { read_only: true, ..plain }, 1500).unwrap();
    let read_only = Limits::new(Device { read_only: true, ..device(512) }, 1500).unwrap();
    for op in [Op::Discard, Op::WriteZeroes] {
        let behind = RequestHeader { offset: 1 << 40, ..good(op) };
        assert_eq!(judged(behind, 0, &unable), Err(Fault::Unsupported));
        assert_eq!(judged(behind, 0, &read_only), Err(Fault::ReadOnly));
        assert_eq!(judged(RequestHeader { length: 5, ..behind }, 0, &unable), Err(Fault::Unaligned));
    }
    assert_eq!(judged(good(Op::Write), 1024, &read_only), Err(Fault::ReadOnly));
    for op in [Op::Info, Op::Read, Op::Flush, Op::Close] {
        assert!(judged(good(op), 0, &read_only).is_ok());
    }
    assert_eq!(Fault::Unsupported.status(), Status::Unsupported);
}

#[test]
fn what_is_no_request_is_known() {
    let view = |datagram: &[u8]| HeaderView::new(datagram).is_ok_and(|view| view.is_request());
    let good = good(Op::Info).seal(None, &[]);
    assert!(view(&good) && !view(&good[..65]));
    for (at, value) in [(0, 0), (4, 1), (5, 0x81)] {
        let mut bad = good;
        bad[at] = value;
        assert!(!view(&bad));
    }
    let answer = ReplyHeader::echo(&HeaderView::new(&good).unwrap(), Status::BadRequest);
    assert!(!view(&answer.seal(None, 0, &[])));
}

proptest! {
    #[test]
    fn any_bytes_are_judged_without_panic(datagram: Vec<u8>, sectors_of_4_kib: bool) {
        let limits = Limits::new(device(if sectors_of_4_kib { 4096 } else { 512 }), 1500).unwrap();
        if let Ok(view) = HeaderView::new(&datagram) {
            let _ = check(&view, &limits);
        }
    }

    #[test]
    fn whatever_passes_is_safe_to_carry_out(
        op in 0..Op::ALL.len(), fua: bool, offset in 0u64..4_000_000, length in 0u32..20_000, roundness: u8,
        part in 0u16..10, parts in 0u16..10, sequence in 0u64..3, body in 0usize..5000,
        long_sectors: bool, read_only: bool, mtu in 606u16..9000,
    ) {
        let sector = if long_sectors { 4096 } else { 512 };
        let limits = Limits::new(Device { read_only, ..device(sector) }, mtu).unwrap();
        let round = |value: u64| if roundness & 1 == 0 { value / 4096 * 4096 } else { value };
        let op = Op::ALL[op];
        let (offset, length) = (round(offset), round(u64::from(length)) as u32);
        let parts = if roundness & 2 == 0 && op == Op::Write {
            length.div_ceil(limits.datagram_bytes()) as u16
        } else if roundness & 2 == 0 {
            1
        } else {
            parts
        };
        let part = if op == Op::Write { part } else { 0 };
        let body = match roundness & 12 {
            0 => body,
            4 => limits.datagram_bytes() as usize,
            _ => 0,
        };
        let flags = if fua { Flags::FUA } else { Flags::NONE };
        let header = RequestHeader { op, flags, cookie: 0xC00C_1E55, offset, length, part, parts, session: 1, sequence };
        let Ok(command) = judged(header, body, &limits) else { return Ok(()) };
        let inside = |range: SectorRange, most: u32| {
            range.length() <= most && range.offset() + u64::from(range.length()) <= limits.size_bytes()
        };
        match command {
            Command::Read(range, _) => prop_assert!(inside(range, limits.max_read_bytes())),
            Command::Write(range, _, part) => {
                prop_assert!(!read_only && inside(range, limits.max_write_bytes()));
                prop_assert!(part.sequence > 0 && part.part < part.parts);
                let start = u32::from(part.part) * limits.datagram_bytes();
                prop_assert!(start as usize + body <= range.length() as usize && body > 0);
            }
            Command::Discard(range, _) => {
                prop_assert!(!read_only && inside(range, limits.max_discard_bytes()));
            }
            Command::WriteZeroes(range, ..) => {
                prop_assert!(!read_only && inside(range, limits.max_write_zeroes_bytes()));
            }
            _ => {}
        }
    }
}
