//! Packets of several pieces, over the real pools: what the host's tests of the bookkeeping cannot
//! see is the memory behind it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::frame::{
    FRAME_BYTES, FillError, FrameChain, MAX_PIECES, NetFrame, Page, PoolStats, page_stats, pool_stats,
};
use crate::memory::PAGE_BYTES;

/// Cards take and give frames at any time: so often the pools may be found changed before that is a
/// leak.
const TRIES: usize = 20;

macro_rules! ensure {
    ($condition:expr) => {
        if !$condition {
            return Err(String::from(concat!("not so: ", stringify!($condition))));
        }
    };
}

/// Sends, receives, refuses and drops packets of every shape, and looks whether the pools have
/// everything again.
pub fn packets() -> Result<(), String> {
    for _ in 0..TRIES {
        let before = (pool_stats(), page_stats());
        answers_out_of_pages()?;
        refusals()?;
        jumbo_packets()?;
        let after = (pool_stats(), page_stats());
        let pages_are_back = after.1.free == before.1.free || before.1.total == 0 && all_free(after.1);
        if after.0.free == before.0.free && pages_are_back {
            return Ok(());
        }
    }
    Err(String::from("frames or pages are missing afterwards"))
}

fn all_free(pool: PoolStats) -> bool {
    pool.free == pool.total
}

fn a_page() -> Result<Page, String> {
    Page::alloc().ok_or_else(|| String::from("there is no page"))
}

fn a_frame(fill: u8, bytes: usize) -> Result<NetFrame, String> {
    let mut frame = NetFrame::alloc().ok_or_else(|| String::from("there is no frame"))?;
    frame.set_len(bytes);
    frame.bytes_mut().fill(fill);
    Ok(frame)
}

fn bytes_of(packet: &NetFrame) -> Vec<u8> {
    packet.pieces().flatten().copied().collect()
}

/// One page, sent by several packets, as a disk's sector is.
fn answers_out_of_pages() -> Result<(), String> {
    const PART_BYTES: usize = 1024;
    let mut page = a_page()?;
    let content: Vec<u8> = (0..PAGE_BYTES).map(|at| (at / 16) as u8).collect();
    ensure!(page.fill(0, &content) == Ok(()));
    ensure!(page.fill(PAGE_BYTES - 1, &[1, 2]) == Err(FillError::OverTheEnd));
    let mut answers = FrameChain::new();
    for offset in (0..PAGE_BYTES).step_by(PART_BYTES) {
        let mut answer = a_frame(0xaa, 108)?;
        ensure!(answer.attach_page(page.clone(), offset, PART_BYTES).is_ok());
        let second = answer.segments().nth(1);
        ensure!(second.is_some_and(|piece| piece.phys == page.phys() + offset && piece.bytes == PART_BYTES));
        answers.push(answer);
    }
    ensure!(page.is_shared());
    ensure!(page.fill(0, &[0]) == Err(FillError::Shared));
    let mut chain = FrameChain::new();
    chain.append(&mut answers);
    let mut offset = 0;
    while let Some(answer) = chain.pop() {
        ensure!((answer.piece_count(), answer.len(), answer.total_len()) == (2, 108, 108 + PART_BYTES));
        let bytes = bytes_of(&answer);
        ensure!(bytes[..108] == [0xaa; 108] && bytes[108..] == content[offset..offset + PART_BYTES]);
        let at_card = answer.into_device();
        ensure!(at_card.piece_behind(0).is_some_and(|piece| piece.phys == page.phys() + offset));
        ensure!(at_card.piece_behind(1).is_none());
        drop(at_card.reclaim(0));
        offset += PART_BYTES;
    }
    ensure!(offset == PAGE_BYTES && !page.is_shared());
    ensure!(page.fill(0, &[9]) == Ok(()) && page.bytes()[0] == 9);
    Ok(())
}

/// What cannot be attached comes back.
fn refusals() -> Result<(), String> {
    let mut packet = a_frame(1, 60)?;
    let page = a_page()?;
    let page = match packet.attach_page(page, 1, PAGE_BYTES) {
        Err(page) => page,
        Ok(()) => return Err(String::from("bytes behind a page's end were attached")),
    };
    ensure!(packet.attach_page(page.clone(), 0, 0).is_err());
    ensure!(packet.attach_frame(a_frame(0, 0)?).is_err());
    for pieces in 1..MAX_PIECES {
        ensure!(packet.piece_count() == pieces);
        ensure!(packet.attach_page(page.clone(), pieces, 1).is_ok());
    }
    ensure!(packet.attach_page(page.clone(), 0, 1).is_err());
    ensure!(packet.attach_frame(a_frame(2, 1)?).is_err());
    let mut other = a_frame(3, 60)?;
    ensure!(other.attach_frame(packet).is_err());
    ensure!(!page.is_shared());
    Ok(())
}

/// Frames that a card filled, one after the other.
fn jumbo_packets() -> Result<(), String> {
    const FRAMES: usize = 5;
    let room = FRAMES * FRAME_BYTES;
    for len in [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 9014, room, room + 1, usize::MAX] {
        let mut head = a_frame(0, FRAME_BYTES)?;
        for number in 1..FRAMES {
            ensure!(head.attach_frame(a_frame(number as u8, FRAME_BYTES)?).is_ok());
        }
        let mut spare = FrameChain::new();
        let mut packet = head.into_device().reclaim_received(len, &mut spare);
        let bytes = len.min(room);
        let frames = bytes.div_ceil(FRAME_BYTES).max(1);
        ensure!((packet.total_len(), packet.piece_count()) == (bytes, frames));
        ensure!(spare.len() == FRAMES - frames);
        let expected = (0..bytes).map(|at| (at / FRAME_BYTES) as u8);
        ensure!(bytes_of(&packet).into_iter().eq(expected));
        let mut behind = packet.detach();
        ensure!(behind.len() == frames - 1 && packet.total_len() == packet.len());
        let mut number = 0;
        while let Some(frame) = behind.pop() {
            number += 1;
            ensure!(frame.piece_count() == 1 && frame.bytes().iter().all(|&byte| byte == number));
        }
    }
    Ok(())
}
