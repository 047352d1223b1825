//! A datagram from anywhere to a netblk client, in both versions: without the right tag it is a hint at most.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netblk_proto::v2::{Answer, HeaderView, Info, Op, Reply, Status, TagKey};

const KEY: TagKey = TagKey::new([5; 16]);

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (keyed, mut datagram) = input;
    if let Ok(netblk_proto::Reply::Info { body, .. }) = netblk_proto::Reply::parse(&datagram) {
        let _ = netblk_proto::Info::parse(body);
    }
    // Sealed, so that what lies behind the first bytes is reached.
    if datagram.len() >= 6 {
        datagram[..5].copy_from_slice(b"NBLK\x02");
        datagram[5] |= 0x80;
    }
    let Ok(reply) = Reply::parse(&datagram, keyed.then_some(&KEY)) else { return };
    let view = HeaderView::new(&datagram).expect("a reply has a header");
    assert_eq!(reply.authentic, keyed && view.is_tagged_with(&KEY));
    match reply.answer {
        Answer::Connected(body) | Answer::Info(body) => {
            assert!(reply.authentic);
            if let Ok(info) = Info::parse(body) {
                assert_eq!(Info::parse(&info.to_bytes()), Ok(info));
                assert!(info.device.size_bytes.is_multiple_of(info.device.sector_bytes.into()));
            }
        }
        Answer::Data { data, part, parts, .. } => {
            assert!(reply.authentic && part < parts && data.len() == view.length() as usize);
        }
        Answer::Done { .. } => assert!(reply.authentic),
        Answer::Hello(_) => {}
        Answer::Failed { op_code, status, .. } => {
            assert_ne!(status, Status::Ok);
            assert!(reply.authentic || status.may_be_untagged() || op_code == Op::Hello.code());
        }
    }
});
