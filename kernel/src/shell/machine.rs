//! Commands about the machine: tasks, CPUs, memory, interrupts, the log.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use kcore::{cpu, frame, irq, klog, memory, pci, selftest, softirq, task, time};

use super::{Command, Done, Duration, Size, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[PS, CPU, UPTIME, DMESG, MEM, PCI, IRQSTAT, SELFTEST];

const PS: Command = Command { name: "ps", usage: "", help: "every task, its CPU and its time", run: ps };
const CPU: Command =
    Command { name: "cpu", usage: "", help: "every CPU: how busy, its interrupts and switches", run: cpus };
const UPTIME: Command = Command { name: "uptime", usage: "", help: "how long the node has run", run: uptime };
const DMESG: Command =
    Command { name: "dmesg", usage: "", help: "the log, debug lines included", run: dmesg };
const MEM: Command = Command { name: "mem", usage: "", help: "memory, heap and packet frames", run: mem };
const PCI: Command = Command { name: "pci", usage: "", help: "every PCI function", run: pci_functions };
const IRQSTAT: Command =
    Command { name: "irqstat", usage: "", help: "every interrupt, how often on which CPU", run: irqstat };
const SELFTEST: Command = Command {
    name: "selftest",
    usage: "timer|packets|wake [ROUNDS]",
    help: "1 ms sleeps, packets of several pieces, or wake-ups between CPUs",
    run: run_selftest,
};

fn ps(_node: &Node, arguments: &[&str]) -> Done {
    PS.alone(arguments)?;
    say!("{:>4} {:>3} {:<6} {:<8} {:>9} {:>10}  NAME", "ID", "CPU", "PRIO", "STATE", "TIME", "SWITCHES");
    for task in task::list() {
        say!(
            "{:>4} {:>3} {:<6} {:<8} {:>9} {:>10}  {}",
            task.id,
            task.cpu,
            alloc::format!("{:?}", task.priority).to_lowercase(),
            alloc::format!("{:?}", task.state).to_lowercase(),
            alloc::format!("{}", Duration(task.cpu_time_ns)),
            task.switches,
            task.name
        );
    }
    Ok(())
}

fn cpus(_node: &Node, arguments: &[&str]) -> Done {
    CPU.alone(arguments)?;
    let uptime_ns = time::now_ns().max(1);
    say!(
        "{:>3} {:>6} {:>14} {:>11} {:>9} {:>9} {:>11} {:>10}",
        "CPU",
        "BUSY",
        "AWAKE us",
        "INTERRUPTS",
        "TIMER",
        "TICKS",
        "RESCHEDULE",
        "SWITCHES"
    );
    for cpu in 0..cpu::count() {
        let stats = cpu::stats(cpu);
        let awake_ns = uptime_ns.saturating_sub(stats.halted_ns);
        say!(
            "{cpu:>3} {:>5}% {:>14} {:>11} {:>9} {:>9} {:>11} {:>10}",
            awake_ns * 100 / uptime_ns,
            awake_ns / 1000,
            stats.interrupts,
            stats.timer_interrupts,
            stats.ticks,
            stats.reschedule_interrupts,
            stats.switches
        );
    }
    Ok(())
}

fn uptime(_node: &Node, arguments: &[&str]) -> Done {
    UPTIME.alone(arguments)?;
    let seconds = time::now_ns() / 1_000_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    say!("up {days} days, {hours:02}:{minutes:02}:{:02}", seconds % 60);
    Ok(())
}

fn dmesg(_node: &Node, arguments: &[&str]) -> Done {
    DMESG.alone(arguments)?;
    klog::read_all(|line| say!("{line}"));
    Ok(())
}

fn mem(_node: &Node, arguments: &[&str]) -> Done {
    MEM.alone(arguments)?;
    let page = memory::PAGE_BYTES as u64;
    let stats = memory::stats();
    let (total, free) = (stats.total_pages as u64 * page, stats.free_pages as u64 * page);
    say!("memory  {} in all, {} in use, {} free", Size(total), Size(total - free), Size(free));
    say!("heap    {} in use of {}", Size(stats.heap_used_bytes as u64), Size(stats.heap_total_bytes as u64));
    let pool = frame::pool_stats();
    say!(
        "frames  {} of {} free, {} at the lowest, {} wanted in vain",
        pool.free,
        pool.total,
        pool.low_water,
        pool.alloc_failures
    );
    let pages = frame::page_stats();
    if pages.total > 0 {
        say!(
            "pages   {} of {} free, {} at the lowest, {} wanted in vain",
            pages.free,
            pages.total,
            pages.low_water,
            pages.alloc_failures
        );
    }
    Ok(())
}

fn pci_functions(_node: &Node, arguments: &[&str]) -> Done {
    PCI.alone(arguments)?;
    for device in pci::devices() {
        say!(
            "{}  {:04x}:{:04x}  class {:02x}.{:02x}.{:02x}",
            device.address,
            device.vendor,
            device.device,
            device.class,
            device.subclass,
            device.prog_if
        );
    }
    Ok(())
}

fn irqstat(_node: &Node, arguments: &[&str]) -> Done {
    IRQSTAT.alone(arguments)?;
    let columns = cpu::count();
    let row = |cells: &mut dyn Iterator<Item = String>| {
        cells.fold(String::new(), |mut row, cell| {
            let _ = write!(row, " {cell:>10}");
            row
        })
    };
    say!("VECTOR{}  NAME", row(&mut (0..columns).map(|cpu| alloc::format!("CPU {cpu}"))));
    for stat in irq::stats() {
        let counts = row(&mut stat.per_cpu[..columns].iter().map(|count| alloc::format!("{count}")));
        say!("  {:#04x}{counts}  {}", stat.vector, stat.name);
    }
    say!("{} unclaimed, {} NMIs that nobody sent", irq::unclaimed(), kcore::panic::unasked_nmis());
    let dropped = kcore::console::dropped_bytes();
    if dropped > 0 {
        say!("{dropped} typed bytes were dropped because nobody read them");
    }
    let softirqs: Vec<String> =
        softirq::stats().into_iter().map(|(name, runs)| alloc::format!("{name} {runs}")).collect();
    say!("softirqs: {}", if softirqs.is_empty() { String::from("none") } else { softirqs.join(", ") });
    Ok(())
}

fn run_selftest(_node: &Node, arguments: &[&str]) -> Done {
    match arguments {
        ["timer"] => {
            for result in selftest::timer()? {
                say!(
                    "CPU {}: 1 ms took {} (median), {} at the longest{}",
                    result.cpu,
                    Duration(result.median_ns),
                    Duration(result.longest_ns),
                    if result.passed() { "" } else { ": FAILED" }
                );
            }
            Ok(())
        }
        ["packets"] => {
            selftest::packets()?;
            say!("packets of several pieces are whole, and the pools have everything again");
            Ok(())
        }
        ["wake"] => wake(1000),
        ["wake", rounds] => {
            let rounds = rounds
                .parse()
                .ok()
                .filter(|rounds| (1..=100_000).contains(rounds))
                .ok_or_else(|| alloc::format!("{rounds}: not a number of rounds from 1 to 100000"))?;
            wake(rounds)
        }
        _ => Err(SELFTEST.wrong_use()),
    }
}

fn wake(rounds: usize) -> Done {
    for loaded in [false, true] {
        let mut late = 0;
        for result in selftest::wake_latency(rounds, loaded)? {
            late += result.late;
            say!(
                "CPU {} wakes CPU {}{}: median {}, p99 {}, longest {}, {} late",
                result.from,
                result.to,
                if loaded { " (busy)" } else { "" },
                Duration(result.median_ns),
                Duration(result.p99_ns),
                Duration(result.longest_ns),
                result.late
            );
        }
        say!("{} wake-ups late{}", late, if loaded { ", CPUs busy" } else { "" });
    }
    Ok(())
}
