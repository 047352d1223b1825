//! The virtio driver and a card that is the story's own: other shapes of queues than QEMU's card has, and lies.

use stories::frames::NODE_CONFIGURATION;
use stories::vhost::{Lie, Offer};
use stories::{Node, Setup};

use crate::jumbo::{LONGEST, MTU, echo, payload, start_echo};

fn boot(name: &str, offer: Offer, mtu: Option<u16>) -> Node {
    let setup = Setup::of(name).configured(NODE_CONFIGURATION).with_the_storys_card(offer);
    let setup = match mtu {
        Some(mtu) => setup.mtu(mtu),
        None => setup,
    };
    start_echo(setup.boot().ready())
}

fn offers() -> impl Iterator<Item = Offer> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(indirect, event_index)| Offer { indirect, event_index })
}

#[test]
fn queues_of_every_shape_carry_packets_of_every_length() {
    for (number, offer) in offers().enumerate() {
        for mtu in [None, Some(MTU)] {
            let mut node = boot(&format!("shape_{number}_{}", mtu.is_some()), offer, mtu);
            let longest = if mtu.is_some() { LONGEST } else { 1472 };
            for (number, bytes) in [1, 200, 1472, 2006, 2007, 4054, 4055, LONGEST].into_iter().enumerate() {
                let payload = payload(number, bytes);
                if bytes <= longest {
                    let answer = echo(&mut node, &payload);
                    assert!(
                        answer.is_some_and(|answer| answer == payload),
                        "{bytes} bytes, {offer:?}, {mtu:?}"
                    );
                }
            }
            // More than the rings hold, so that every slot has had packets of different shapes.
            for number in 0..400 {
                let payload = payload(number, 1 + number * 997 % longest);
                assert!(
                    echo(&mut node, &payload).is_some_and(|answer| answer == payload),
                    "{number}, {offer:?}"
                );
            }
        }
    }
}

/// What the node says of a lie; `None`: it counts the packet as bad, and goes on.
fn verdict(lie: Lie) -> Option<&'static str> {
    match lie {
        Lie::NoSuchDescriptor | Lie::MiddleOfAChain => Some("which heads no packet"),
        Lie::Twice => Some("which it did not have"),
        Lie::OneByteTooMany | Lie::FarTooMuch => Some("bytes written where it was given"),
        Lie::LessThanAHeader => None,
        Lie::IndexAhead | Lie::IndexBack | Lie::SentTwice => Some("were in flight"),
        // What it is that cannot be true depends on the noise.
        Lie::Noise => Some("eth0: the device "),
    }
}

/// Packets that were received and made no sense, as `net` shows them.
fn bad_packets(node: &mut Node) -> u64 {
    let text = node.run("net");
    let line =
        text.lines().find(|line| line.contains("received") && line.contains(" bad")).unwrap_or_default();
    let word = line.split_whitespace().rev().nth(1).unwrap_or_default();
    word.parse().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn a_card_that_lies_is_reset_and_the_node_goes_on() {
    for (number, offer) in offers().enumerate() {
        let mtu = (number % 2 == 0).then_some(MTU);
        let mut node = boot(&format!("liar_{number}"), offer, mtu);
        for lie in Lie::ALL {
            let before = bad_packets(&mut node);
            if lie == Lie::SentTwice {
                // Something has to be sent.
                node.wire().send(&stories::frames::to_node(&stories::frames::ipv4(
                    1,
                    &[8, 0, 0xf7, 0xff, 0, 0, 0, 0],
                )));
            }
            node.card().lie(lie);
            if let Some(verdict) = verdict(lie) {
                node.expect(verdict);
                node.expect("running again");
            }
            let payload = payload(number, 1000);
            assert!(
                echo(&mut node, &payload).is_some_and(|answer| answer == payload),
                "after {lie:?}, {offer:?}"
            );
            assert!(bad_packets(&mut node) > before, "{lie:?} is counted");
        }
    }
}

#[test]
fn a_card_that_lies_again_and_again_is_given_up_and_the_node_is_not() {
    let mut node = boot("liar_for_ever", Offer { indirect: true, event_index: true }, None);
    for _ in 0..16 {
        node.card().lie(Lie::FarTooMuch);
        node.expect("running again");
    }
    node.card().lie(Lie::FarTooMuch);
    node.expect("down for good");
    assert!(node.run("uptime").contains("up"));
    let answer = node.run("selftest packets");
    assert!(answer.contains("the pools have everything again"), "{answer}");
}
