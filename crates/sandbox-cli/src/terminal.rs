//! The caller's terminal: raw while a command has it, and restored on every way out.

use std::io;
use std::sync::Mutex;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use sandbox_core::PtySize;

/// The state to go back to, while the terminal is raw. Global, because a panic must find it.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal on standard input, if it is one, in raw mode until [`restore`] is called.
pub(crate) fn make_raw() -> io::Result<()> {
    let terminal = rustix::stdio::stdin();
    if !isatty(terminal) {
        return Ok(());
    }
    let before = tcgetattr(terminal)?;
    let mut raw = before.clone();
    raw.make_raw();
    // Saved first: from here on every way out restores.
    *lock() = Some(before);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        hook(panic);
    }));
    tcsetattr(terminal, OptionalActions::Now, &raw)?;
    Ok(())
}

/// Restores the terminal if it is raw. Idempotent.
pub(crate) fn restore() {
    if let Some(before) = lock().take() {
        // Drained first, so that the command's last output is still shown as it was meant. A terminal that has gone away
        // needs nothing.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &before);
    }
}

/// The size of the first of the standard streams that is a terminal; the usual 80 by 24 if none is.
pub(crate) fn size() -> PtySize {
    [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ]
    .into_iter()
    .find_map(|stream| tcgetwinsize(stream).ok())
    .filter(|size| size.ws_row > 0 && size.ws_col > 0)
    .map_or_else(PtySize::default, |size| PtySize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    SAVED
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
