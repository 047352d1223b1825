//! A datagram from a stranger to a netblk server, in both versions: judged without a panic; whatever passes lies on
//! the device; no answer to a stranger is longer than its question; nothing runs twice.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use netblk_proto::v2::{
    Added, Arrival, Assemblies, Command, Device, HeaderView, Limits, PartOfWrite, ReplyHeader, Status, TagKey,
    Window, WriteShape, check,
};
use netblk_proto::{Flags, SectorRange};

const KEY: TagKey = TagKey::new([5; 16]);

fn inside(range: &SectorRange, most: u32, limits: &Limits) {
    assert!(range.length() > 0 && range.length() <= most);
    assert!(range.offset() + u64::from(range.length()) <= limits.size_bytes());
}

fuzz_target!(|input: (bool, bool, u16, Vec<Vec<u8>>)| {
    let (long_sectors, read_only, mtu, datagrams) = input;
    let sector_bytes = if long_sectors { 4096 } else { 512 };
    let device = Device {
        sector_bytes,
        sectors: 4000,
        read_only,
        max_write_bytes: 4096,
        max_discard_bytes: 1 << 20,
        max_write_zeroes_bytes: 1 << 19,
    };
    let Ok(limits) = Limits::new(device, mtu) else { return };
    let old_limits = netblk_proto::Limits::new(sector_bytes, 4000, mtu, read_only);
    let (mut window, mut assemblies, mut ran) = (Window::new(), Assemblies::new(), HashSet::new());
    for mut datagram in datagrams {
        if let Ok(limits) = &old_limits
            && let Err(refused) = netblk_proto::check(&datagram, limits)
            && let Some(answer) = refused.answer
        {
            assert!(netblk_proto::check(&answer.to_bytes(), limits).unwrap_err().answer.is_none());
        }
        // Sealed, so that what lies behind magic and version is reached.
        if let Some(start) = datagram.get_mut(..5) {
            start.copy_from_slice(b"NBLK\x02");
        }
        let Ok(view) = HeaderView::new(&datagram) else { continue };
        if !view.is_request() {
            continue;
        }
        let _ = view.is_tagged_with(&KEY);
        let request = match check(&view, &limits) {
            Ok(request) => request,
            Err(fault) => {
                assert_ne!(fault.status(), Status::Ok);
                let answer = ReplyHeader::echo(&view, fault.status()).seal(None, 0, &[]);
                assert!(answer.len() <= datagram.len());
                assert!(!HeaderView::new(&answer).unwrap().is_request());
                continue;
            }
        };
        match request.command {
            Command::Read(range, _) => inside(&range, limits.max_read_bytes(), &limits),
            Command::Discard(range, _) => inside(&range, limits.max_discard_bytes(), &limits),
            Command::WriteZeroes(range, ..) => inside(&range, limits.max_write_zeroes_bytes(), &limits),
            Command::Write(range, _, PartOfWrite { sequence, part, parts }) => {
                inside(&range, limits.max_write_bytes(), &limits);
                assert!(!read_only);
                if window.look(sequence) != Arrival::New {
                    continue;
                }
                let (offset, length) = (range.offset(), range.length());
                let shape = WriteShape { sequence, offset, length, flags: Flags::NONE, parts };
                if let Added::Complete(pieces) = assemblies.add(shape, part, view.body_bytes()) {
                    assert_eq!(pieces.into_iter().sum::<usize>(), length as usize);
                    assert_eq!(window.arrive(sequence), Arrival::New);
                    assert!(ran.insert(sequence), "{sequence} ran twice");
                    window.finish(sequence, Status::Ok);
                }
            }
            _ => {}
        }
    }
});
