//! The checks that end well.

use crate::{memory, say};
use arch::addr::{PAGE_BYTES, PhysAddr, PhysRange, VirtAddr, phys_to_virt};
use arch::boot::BootInfo;
use arch::context::{self, Context};
use arch::paging::{self, MapError, Protection, Stack};
use arch::traps::{VECTOR_DEVICE_FIRST, VECTOR_RESCHEDULE, VECTOR_TIMER};
use arch::{apic, backtrace, clock, cpu, ioapic, port};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How long anything may take, on a busy host too.
const PATIENCE_NS: u64 = 2_000_000_000;

// Words of each CPU's area, counted up by the hooks.
const WORD_TIMER: usize = 0;
const WORD_RESCHEDULE: usize = 1;
const WORD_DEVICE: usize = 2;
const WORD_NMI: usize = 3;
const WORD_NMI_STACK: usize = 4;
const WORD_NMI_DEPTH: usize = 5;
/// Wake-ups that a CPU has acted upon.
const WORD_SERVED: usize = 6;

/// The interrupt hook: counts, acknowledges, and runs the task switch that is being checked.
pub fn on_interrupt(vector: u8) {
    let word = match vector {
        VECTOR_TIMER => WORD_TIMER,
        VECTOR_RESCHEDULE => WORD_RESCHEDULE,
        _ => WORD_DEVICE,
    };
    cpu::local_word(word).fetch_add(1, Ordering::Relaxed);
    apic::eoi();
    if vector == VECTOR_TIMER && PREEMPTING.load(Ordering::Relaxed) && cpu::index() == 0 {
        switch_over();
    }
}

/// The NMI hook: notes on which stack it runs and how deep the interrupted one was.
pub fn on_nmi(frame_pointer: u64, _instruction: u64) {
    let here = backtrace::frame_pointer();
    let mut depth = 0;
    backtrace::walk(usize::try_from(frame_pointer).unwrap_or(0), |_| depth += 1);
    cpu::local_word(WORD_NMI_STACK).store(here, Ordering::Relaxed);
    cpu::local_word(WORD_NMI_DEPTH).store(depth, Ordering::Relaxed);
    cpu::local_word(WORD_NMI).fetch_add(1, Ordering::Release);
}

/// An address that the other CPUs read a word from, and what they read.
static WATCHED: AtomicU64 = AtomicU64::new(0);
static SEEN: [AtomicU64; cpu::MAX_CPUS] = [const { AtomicU64::new(0) }; cpu::MAX_CPUS];
/// A clock reading that is handed from CPU to CPU.
static RELAY_NS: AtomicU64 = AtomicU64::new(0);
static RELAY_TURN: AtomicUsize = AtomicUsize::new(0);
static RELAY_BACKWARDS: AtomicUsize = AtomicUsize::new(0);

/// What the other CPUs do: serve the checks when they are woken, by an IPI that [`wake_others`]
/// sends. Between checks they sleep, since on an emulator they share the host's CPUs.
pub fn other_cpu(me: usize) -> ! {
    loop {
        // The counter is read with interrupts off, so a wake-up after it ends the HLT.
        cpu::disable_interrupts();
        let wanted = cpu::local_word(WORD_RESCHEDULE).load(Ordering::Relaxed);
        let served = cpu::local_word(WORD_SERVED);
        if served.load(Ordering::Relaxed) == wanted {
            cpu::enable_and_halt();
            continue;
        }
        cpu::enable_interrupts();
        let watched = WATCHED.load(Ordering::Acquire);
        if watched != 0 {
            let pointer: *const u64 = VirtAddr(watched).as_ptr();
            // SAFETY: the first CPU names a mapped word and unmaps it only after taking it back
            // from here (see `shootdown`).
            let value = unsafe { pointer.read_volatile() };
            SEEN[me].store(value, Ordering::Release);
        }
        if RELAY_TURN.load(Ordering::Acquire) == me {
            relay(me);
        }
        served.store(wanted, Ordering::Release);
    }
}

/// Makes every other CPU look at what is to be done.
fn wake_others() {
    (1..cpu::count()).for_each(|n| apic::send_ipi(n, VECTOR_RESCHEDULE));
}

fn relay(me: usize) {
    let now_ns = clock::now_ns();
    if now_ns < RELAY_NS.swap(now_ns, Ordering::Relaxed) {
        RELAY_BACKWARDS.fetch_add(1, Ordering::Relaxed);
    }
    let next = (me + 1) % cpu::count();
    RELAY_TURN.store(next, Ordering::Release);
    apic::send_ipi(next, VECTOR_RESCHEDULE);
}

fn wait_for(done: impl Fn() -> bool) -> bool {
    let start_ns = clock::now_ns();
    while !done() {
        if clock::now_ns() - start_ns > PATIENCE_NS {
            return false;
        }
        cpu::pause();
    }
    true
}

/// Runs all; gives how many passed and failed.
pub fn run(boot: &BootInfo) -> (u32, u32) {
    let checks: [(&str, &dyn Fn() -> bool); 13] = [
        ("every CPU runs with its own number", &all_cpus),
        ("the timer fires once, in time", &timer),
        ("the clock moves as the calibration says", &clock_rate),
        ("the clock does not run backwards between CPUs", &clock_order),
        ("inter-processor interrupts arrive at every CPU", &inter_processor),
        ("an NMI has a stack of its own and sees the interrupted frames", &nmi),
        ("a line interrupt arrives through the I/O APIC", &line_interrupt),
        ("contexts switch, also from inside an interrupt", &contexts),
        ("a translation is forgotten on every CPU", &shootdown),
        ("stacks come and go without losing frames", &stacks),
        ("a module's code runs while it is there, and can be written before and after", &modules),
        ("device memory is mapped, RAM as device memory is refused", &|| windows(boot)),
        ("the memory map leaves out what is in use", &|| memory_map(boot)),
    ];
    let mut passed = 0;
    let mut failed = 0;
    for (name, check) in checks {
        if check() {
            passed += 1;
            say!("ok   {name}");
        } else {
            failed += 1;
            say!("FAIL {name}");
        }
    }
    (passed, failed)
}

fn all_cpus() -> bool {
    (0..cpu::count()).all(cpu::is_online)
        && cpu::index() == 0
        && (1..cpu::count()).all(|n| (0..n).all(|m| cpu::apic_id(n) != cpu::apic_id(m)))
}

fn timer() -> bool {
    const WANTED_NS: u64 = 1_000_000;
    let count = || cpu::local_word(WORD_TIMER).load(Ordering::Relaxed);
    let before = count();
    let start_ns = clock::now_ns();
    apic::timer_arm(WANTED_NS);
    let fired = wait_for(|| count() != before);
    let took_ns = clock::now_ns() - start_ns;
    say!("     a timer of 1000 us took {} us", took_ns / 1000);
    fired && took_ns >= WANTED_NS * 99 / 100 && count() == before + 1 && (0..3).any(|_| timer_is_disarmed())
}

/// A disarmed timer does not fire. On a busy host it may have fired before it could be disarmed.
fn timer_is_disarmed() -> bool {
    const ARMED_NS: u64 = 10_000_000;
    let count = || cpu::local_word(WORD_TIMER).load(Ordering::Relaxed);
    let before = count();
    let start_ns = clock::now_ns();
    apic::timer_arm(ARMED_NS);
    apic::timer_disarm();
    while clock::now_ns() - start_ns < 2 * ARMED_NS {
        cpu::pause();
    }
    count() == before
}

/// The PIT is the judge, as a timer that the calibration did not use. A busy host may hold this CPU
/// up between two readings that belong together, so one good comparison of several is enough.
fn clock_rate() -> bool {
    (0..5).any(|_| clock_agrees_with_pit())
}

fn clock_agrees_with_pit() -> bool {
    const PIT_HZ: u64 = 1_193_182;
    const TICKS: u64 = 20_000;
    let read = || {
        // SAFETY: latches and reads the count of channel 2, which drives only the speaker.
        unsafe {
            port::write8(0x43, 0x80);
            u16::from_le_bytes([port::read8(0x42), port::read8(0x42)])
        }
    };
    // SAFETY: as above: gate on, speaker off, mode 0, full count.
    unsafe {
        port::write8(0x61, (port::read8(0x61) & !2) | 1);
        port::write8(0x43, 0xb0);
        port::write8(0x42, 0xff);
        port::write8(0x42, 0xff);
    }
    let (first, start_ns) = (read(), clock::now_ns());
    let mut last = first;
    while u64::from(first.wrapping_sub(last)) < TICKS {
        last = read();
    }
    let measured_ns = clock::now_ns() - start_ns;
    let stated_ns = u64::from(first.wrapping_sub(last)) * 1_000_000_000 / PIT_HZ;
    say!("     {stated_ns} ns by the PIT are {measured_ns} ns by the clock");
    measured_ns.abs_diff(stated_ns) < stated_ns / 50
}

fn clock_order() -> bool {
    const HANDS: u32 = 200;
    RELAY_NS.store(clock::now_ns(), Ordering::Relaxed);
    for _ in 0..HANDS {
        relay(0);
        if cpu::count() > 1 && !wait_for(|| RELAY_TURN.load(Ordering::Acquire) == 0) {
            return false;
        }
    }
    let offsets = (0..cpu::count()).filter(|n| clock::tsc_offset(*n) != 0).count();
    say!("     {HANDS} rounds; {offsets} CPUs need a correction");
    RELAY_BACKWARDS.load(Ordering::Relaxed) == 0
}

fn inter_processor() -> bool {
    (0..cpu::count()).all(|target| {
        let word = cpu::word_of(target, WORD_RESCHEDULE);
        let before = word.load(Ordering::Relaxed);
        apic::send_ipi(target, VECTOR_RESCHEDULE);
        wait_for(|| word.load(Ordering::Relaxed) > before)
    })
}

fn nmi() -> bool {
    (0..cpu::count()).all(|target| {
        let word = cpu::word_of(target, WORD_NMI);
        let before = word.load(Ordering::Relaxed);
        apic::send_nmi(target);
        let arrived = wait_for(|| word.load(Ordering::Acquire) == before + 1);
        let stack = cpu::word_of(target, WORD_NMI_STACK).load(Ordering::Relaxed);
        let depth = cpu::word_of(target, WORD_NMI_DEPTH).load(Ordering::Relaxed);
        // This CPU's own: its frames are on another stack than the hook's.
        let own = backtrace::frame_pointer();
        arrived && stack != 0 && (target != 0 || own.abs_diff(stack) > 8192) && depth > 0
    })
}

/// The PIT's channel 0 as a one-shot, by ISA interrupt 0, to the last CPU.
fn line_interrupt() -> bool {
    let target = cpu::count() - 1;
    let word = cpu::word_of(target, WORD_DEVICE);
    let before = word.load(Ordering::Relaxed);
    let Ok(gsi) = ioapic::route_isa(0, VECTOR_DEVICE_FIRST, target) else { return false };
    let shoot = || {
        // SAFETY: channel 0, mode 0, about a millisecond; its interrupt is routed to this check.
        unsafe {
            port::write8(0x43, 0x30);
            port::write8(0x40, 0xa9);
            port::write8(0x40, 0x04);
        }
    };
    shoot();
    let arrived = wait_for(|| word.load(Ordering::Relaxed) == before + 1);
    let masked = ioapic::mask(gsi).is_ok();
    let beyond = ioapic::route_gsi(5000, VECTOR_DEVICE_FIRST, 0, false, false);
    let wrong = ioapic::route_gsi(gsi, VECTOR_TIMER, 0, false, false);
    arrived
        && masked
        && beyond == Err(ioapic::RouteError::NoSuchInput)
        && wrong == Err(ioapic::RouteError::BadVector)
}

/// Two contexts on CPU 0: the main one and a task.
struct Pair(UnsafeCell<[Context; 2]>);
// SAFETY: only CPU 0 uses it, with interrupts off.
unsafe impl Sync for Pair {}

static CONTEXTS: Pair = Pair(UnsafeCell::new([Context::empty(), Context::empty()]));
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static PREEMPTING: AtomicBool = AtomicBool::new(false);
static TASK_TURNS: AtomicUsize = AtomicUsize::new(0);

/// Goes from the one context to the other. On CPU 0, interrupts off.
fn switch_over() {
    let from = RUNNING.load(Ordering::Relaxed);
    RUNNING.store(1 - from, Ordering::Relaxed);
    let contexts = CONTEXTS.0.get().cast::<Context>();
    // SAFETY: interrupts are off; `from` is the context that runs, the other one was made by
    // `Context::new` or left by this function.
    unsafe { context::switch(contexts.add(from), contexts.add(1 - from)) };
}

/// A task that never gives up the CPU by itself.
extern "C" fn spinning_task(argument: usize) -> ! {
    if argument != 0x5eed {
        say!("     the task's argument is {argument:#x}");
    }
    cpu::enable_interrupts();
    loop {
        TASK_TURNS.fetch_add(1, Ordering::Relaxed);
        cpu::pause();
    }
}

fn task_stack() -> Result<Stack, MapError> {
    paging::alloc_stack(32 * 1024, memory::alloc)
}

fn contexts() -> bool {
    let Ok(stack) = task_stack() else { return false };
    let state = cpu::irq_save();
    // SAFETY: CPU 0, interrupts off; the stack is new.
    unsafe {
        (*CONTEXTS.0.get())[1] = Context::new(stack.top(), spinning_task, 0x5eed);
    }
    // Into the task, and by the timer back out of it, several times. On a busy host the timer may
    // end a turn before the task has done anything, so some turns may be empty.
    const TURNS_WANTED: u32 = 3;
    PREEMPTING.store(true, Ordering::Relaxed);
    let mut turns = 0;
    let start_ns = clock::now_ns();
    while turns < TURNS_WANTED && clock::now_ns() - start_ns < PATIENCE_NS {
        let before = TASK_TURNS.load(Ordering::Relaxed);
        apic::timer_arm(1_000_000);
        switch_over();
        turns += u32::from(TASK_TURNS.load(Ordering::Relaxed) > before);
    }
    PREEMPTING.store(false, Ordering::Relaxed);
    cpu::irq_restore(state);
    paging::free_stack(stack, memory::free);
    turns == TURNS_WANTED && RUNNING.load(Ordering::Relaxed) == 0
}

/// Runs `what` on a stack of [`task_stack`]; it must not return.
pub fn on_a_task_stack(what: fn()) {
    extern "C" fn start(what: usize) -> ! {
        // SAFETY: the caller below passed a `fn()`.
        let what: fn() = unsafe { core::mem::transmute(what) };
        what();
        cpu::halt_forever()
    }
    let Ok(stack) = task_stack() else { return };
    cpu::disable_interrupts();
    let mut left = Context::empty();
    // SAFETY: the stack is new; nobody comes back to `left`.
    unsafe {
        let next = Context::new(stack.top(), start, what as usize);
        context::switch(&raw mut left, &raw const next);
    }
}

/// Machine code of a function that returns `value`: MOV EAX, imm32 and RET (AMD APM vol. 3).
fn returning(value: u32) -> [u8; 6] {
    let [a, b, c, d] = value.to_le_bytes();
    [0xb8, a, b, c, d, 0xc3]
}

/// A page of code at the beginning of the module area, and the frame in which it lies.
pub fn map_code(value: u32) -> Option<(VirtAddr, PhysRange)> {
    let (at, frame) = (VirtAddr(paging::MODULE_AREA.start), memory::alloc()?);
    let frames = PhysRange { start: frame, bytes: PAGE_BYTES };
    // SAFETY: the frame is new and RAM, so it is this function's, and a page holds six bytes; nobody
    // writes it while it is mapped as code.
    unsafe {
        phys_to_virt(frame).cast::<[u8; 6]>().write_volatile(returning(value));
        paging::map_module(at, frames, Protection::Code).ok()?;
    }
    Some((at, frames))
}

/// The area is used several times with different frames; a CPU that kept a translation would run the
/// code before, or fault on the write after.
fn modules() -> bool {
    (0..20).all(|round| {
        let Some((at, frames)) = map_code(round) else { return false };
        let in_code = paging::is_module_code(at);
        // SAFETY: a function of this type is mapped there, see `returning`.
        let function: extern "C" fn() -> u32 = unsafe { core::mem::transmute(at.as_ptr::<()>()) };
        let returned = function();
        // SAFETY: nobody is in it any more; the frame is again this function's alone.
        unsafe {
            paging::unmap_module(at, frames);
            phys_to_virt(frames.start).write_volatile(0);
        }
        in_code && returned == round && !paging::is_module_code(at)
    })
}

/// A stack's slot is used twice with different frames: a CPU that kept the first translation
/// would read the first contents.
fn shootdown() -> bool {
    let others = 1..cpu::count();
    (0..20u64).all(|round| {
        let Ok(stack) = task_stack() else { return false };
        let word = VirtAddr(stack.top() as u64 - 8);
        let value = 0x1000 + round;
        // SAFETY: the stack's highest word, which nobody else uses.
        unsafe { word.as_mut_ptr::<u64>().write_volatile(value) };
        WATCHED.store(word.as_u64(), Ordering::Release);
        wake_others();
        let all = wait_for(|| others.clone().all(|n| SEEN[n].load(Ordering::Acquire) == value));
        WATCHED.store(0, Ordering::Release);
        // A CPU may be about to read once more: let each get past that.
        let past = |n: usize| {
            let served = cpu::word_of(n, WORD_SERVED).load(Ordering::Acquire);
            served == cpu::word_of(n, WORD_RESCHEDULE).load(Ordering::Relaxed)
        };
        wake_others();
        let all = all && wait_for(|| others.clone().all(past));
        paging::free_stack(stack, memory::free);
        all && !paging::is_mapped_ram(word) && paging::is_guard_page(word)
    })
}

fn stacks() -> bool {
    let freed = memory::freed();
    let Ok(stack) = paging::alloc_stack(5000, memory::alloc) else { return false };
    let (top, bottom) = (stack.top() as u64, stack.bottom());
    let sound = stack.len_bytes() == 8192
        && bottom.as_u64() + 8192 == top
        && paging::is_mapped_ram(bottom)
        && !paging::is_mapped_ram(VirtAddr(bottom.as_u64() - 1))
        && paging::is_guard_page(VirtAddr(bottom.as_u64() - 1))
        && !paging::is_guard_page(bottom);
    paging::free_stack(stack, memory::free);
    let refused = [
        paging::alloc_stack(0, memory::alloc).is_err(),
        paging::alloc_stack(paging::MAX_STACK_BYTES + 1, memory::alloc).is_err(),
        paging::alloc_stack(8192, || None).is_err(),
    ];
    sound && memory::freed() == freed + 2 && refused.iter().all(|r| *r)
}

fn windows(boot: &BootInfo) -> bool {
    let ram = paging::map_mmio(boot.kernel.start, 4096);
    let nothing = paging::map_mmio(PhysAddr(0xfee0_0000), 0);
    let beyond = paging::map_mmio(PhysAddr(u64::MAX - 5), 100);
    let odd = paging::map_mmio(PhysAddr(0xfee0_0030), 4);
    // The local APIC's version register is never zero; in x2APIC mode the page reads as nothing.
    let window = odd.is_ok_and(|at| !paging::is_mapped_ram(at) && at.as_u64() % 4096 == 0x30);
    let large = paging::map_mmio(PhysAddr(0xe010_0000), 16 << 20);
    ram == Err(MapError::IsRam)
        && nothing == Err(MapError::BadRange)
        && beyond == Err(MapError::BadRange)
        && window
        && large.is_ok_and(|at| at.as_u64() % (2 << 20) == 1 << 20)
}

fn memory_map(boot: &BootInfo) -> bool {
    use arch::boot::MemoryKind::Usable;
    let usable = || boot.memory.iter().filter(|region| region.kind == Usable);
    let clear = |start: PhysAddr, bytes: u64| {
        usable().all(|r| r.end() <= start || start.as_u64() + bytes <= r.start.as_u64())
    };
    clear(PhysAddr(0), 1 << 20)
        && clear(boot.kernel.start, boot.kernel.bytes)
        && boot.archive.is_none_or(|archive| clear(archive.start, archive.bytes))
        && usable().map(|region| region.bytes).sum::<u64>() > 16 << 20
}
