//! A guest's virtio console: the same line as its UART's, without an exit for every byte.
//!
//! What the guest writes to either is shown. What is typed goes to one of them, the console that
//! Linux makes `/dev/console`: the last `console=` of the command line ([`listens`]).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use hvarch::GuestMemory;
use kcore::sync::SpinLock;
use machine::pci::Identity;
use virtio_device::console::{Console, ConsoleFunction, Line, RECEIVE_QUEUE, TRANSMIT_QUEUE};
use virtio_device::{DeviceKind, Event, Region};

use crate::bell::Bells;
use crate::devices::{Device, Round};
use crate::guest::{ConsoleLine, Guest};

/// Whether a guest with this command line listens on its virtio console rather than on its UART.
pub fn listens(command_line: &str) -> bool {
    let mut consoles = command_line.split_whitespace().filter_map(|word| word.strip_prefix("console="));
    consoles.next_back().is_some_and(|console| console.starts_with("hvc"))
}

/// The line: output as the UART's, input if it comes here.
struct Terminal {
    guest: Arc<Guest>,
    output: ConsoleLine,
    listens: bool,
}

impl Line for Terminal {
    fn put(&mut self, bytes: &[u8]) {
        self.output.write(bytes);
    }

    fn has_input(&self) -> bool {
        self.listens && self.guest.console.has_input()
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        if self.listens { self.guest.console.take_input(into) } else { 0 }
    }
}

/// The device.
pub struct VirtioConsole {
    ram: Arc<GuestMemory>,
    /// Its lock comes after the line's.
    function: SpinLock<ConsoleFunction>,
    line: SpinLock<Terminal>,
    transmit_wanted: AtomicBool,
    receive_wanted: AtomicBool,
    bells: Bells,
}

impl VirtioConsole {
    pub fn new(guest: Arc<Guest>, output: ConsoleLine, ram: Arc<GuestMemory>, bells: Bells) -> VirtioConsole {
        let listens = listens(&guest.spec.command_line);
        VirtioConsole {
            ram,
            function: SpinLock::new(ConsoleFunction::console(0)),
            line: SpinLock::new(Terminal { guest, output, listens }),
            transmit_wanted: AtomicBool::new(false),
            receive_wanted: AtomicBool::new(false),
            bells,
        }
    }

    /// Somebody has typed. False if it is not for this console.
    pub fn input_arrived(&self) -> bool {
        let listens = self.line.lock().listens;
        if listens {
            self.receive_wanted.store(true, Ordering::SeqCst);
        }
        listens
    }
}

impl Device for VirtioConsole {
    fn identity(&self) -> Identity {
        Identity { virtio_type: DeviceKind::Console.id(), config_bytes: Console::CONFIG_BYTES, queues: 2 }
    }

    fn what(&self) -> &str {
        "virtio console"
    }

    fn read(&self, region: Region, offset: u32, bytes: u8) -> u64 {
        self.function.lock().read(region, offset, bytes)
    }

    fn write(&self, region: Region, offset: u32, bytes: u8, value: u64) {
        let event = self.function.lock().write(&*self.ram, region, offset, bytes, value);
        let (transmit, receive) = match event {
            Event::Nothing => return,
            // A fault on the way here ends the device, too, and must be looked at.
            Event::Started | Event::Stopped => (true, true),
            Event::Notified { queue } => (queue == TRANSMIT_QUEUE, queue == RECEIVE_QUEUE),
        };
        if transmit {
            self.transmit_wanted.store(true, Ordering::SeqCst);
        }
        if receive {
            self.receive_wanted.store(true, Ordering::SeqCst);
        }
        self.bells.ring_device_cpu();
    }

    fn interrupt_line(&self) -> bool {
        self.function.lock().interrupt_line()
    }

    fn round(&self, _now_ns: u64) -> Round {
        let transmit = self.transmit_wanted.swap(false, Ordering::SeqCst);
        let receive = self.receive_wanted.swap(false, Ordering::SeqCst);
        if !transmit && !receive {
            return Round::default();
        }
        let mut line = self.line.lock();
        let mut function = self.function.lock();
        let sent = transmit && function.transmit(&*self.ram, &mut *line).more;
        let received = receive && function.receive(&*self.ram, &mut *line).more;
        self.transmit_wanted.fetch_or(sent, Ordering::SeqCst);
        self.receive_wanted.fetch_or(received, Ordering::SeqCst);
        Round { more: sent || received, due_ns: None, fault: function.fault() }
    }
}
