//! One case, and how a case says what it found.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

use sandbox_core::{Caps, Error};

use crate::context::Context;
use crate::needs::Need;

/// The edition of the contract that the cases prove; a case says in which one it appeared.
pub(crate) const EDITION: u32 = 1;

pub(crate) type Run = fn(Context) -> Pin<Box<dyn Future<Output = Done> + Send>>;

/// One provable fact about every backend.
///
/// ```
/// let cases = sandbox_conformance::all();
/// let case = cases.iter().find(|case| case.id == "exec::exit_code_is_kept").unwrap();
/// assert_eq!(case.rules, ["EXEC-2", "EXEC-6"]);
/// ```
pub struct Case {
    /// The fact, in the present tense, after its group: `exec::exit_code_is_kept`.
    pub id: &'static str,
    /// The rules of `docs/CONTRACT.md` that it proves.
    pub rules: &'static [&'static str],
    /// The edition of the contract in which it appeared.
    pub since: u32,
    /// When it applies: if all of them are met.
    pub needs: &'static [Need],
    /// How long it may take.
    pub deadline: Duration,
    pub(crate) run: Run,
}

/// Whom a case concerns.
///
/// ```
/// use sandbox_conformance::Level;
/// assert!(sandbox_conformance::all().iter().any(|case| case.level() == Level::Core));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Every backend.
    Core,
    /// Backends that declare an ability.
    Extended,
    /// Backends that lack one.
    Negative,
}

impl Case {
    /// Whom it concerns.
    ///
    /// ```
    /// use sandbox_conformance::Level;
    /// let cases = sandbox_conformance::all();
    /// let twin = cases.iter().find(|case| case.id == "caps::undeclared_dial_is_refused").unwrap();
    /// assert_eq!(twin.level(), Level::Negative);
    /// ```
    pub fn level(&self) -> Level {
        if self.needs.iter().any(|need| matches!(need, Need::Lacks(_))) {
            Level::Negative
        } else if self.needs.is_empty() {
            Level::Core
        } else {
            Level::Extended
        }
    }

    /// Why it does not apply to a backend with these capabilities; `None` if it does.
    ///
    /// ```
    /// let cases = sandbox_conformance::all();
    /// let case = cases.iter().find(|case| case.id == "exec::exit_code_is_kept").unwrap();
    /// assert_eq!(case.skipped_by(&sandbox_core::Caps::default()), None);
    /// ```
    pub fn skipped_by(&self, caps: &Caps) -> Option<String> {
        self.needs.iter().find_map(|need| need.unmet(caps))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("id", &self.id)
            .field("rules", &self.rules)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// What a case comes to.
pub(crate) type Done<T = ()> = Result<T, Stop>;

/// Why a case did not pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The backend breaks a rule.
    Fail(String),
    /// The base lacks something that the case needs.
    Unavailable(String),
    /// The suite's own fault.
    Error(String),
}

impl Stop {
    #[track_caller]
    pub(crate) fn fail(text: impl fmt::Display) -> Self {
        Stop::fail_at(text, Location::caller())
    }

    /// For helpers whose failures are their callers'.
    pub(crate) fn fail_at(text: impl fmt::Display, location: &Location<'_>) -> Self {
        Stop::Fail(format!("{text} ({})", place(location)))
    }
}

/// `cases/exec.rs:12`: enough to find it, and the same wherever the crate was built.
fn place(location: &Location<'_>) -> String {
    let file = location.file();
    let file = file.rsplit_once("src/").map_or(file, |(_, inside)| inside);
    format!("{file}:{}", location.line())
}

impl From<Error> for Stop {
    #[track_caller]
    fn from(error: Error) -> Self {
        Stop::fail(format!(
            "unexpected error of kind {:?}: {error}",
            error.kind()
        ))
    }
}

impl From<std::io::Error> for Stop {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Stop::Error(format!(
            "the case's own input or output failed: {error} ({})",
            place(Location::caller())
        ))
    }
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::case::Stop::fail(format!($($text)+)));
        }
    };
}

/// Fails the case unless both are equal.
macro_rules! ensure_eq {
    ($actual:expr, $expected:expr, $($text:tt)+) => {
        match (&$actual, &$expected) {
            (actual, expected) => {
                if actual != expected {
                    return Err($crate::case::Stop::fail(format!(
                        "{}: got {}, expected {}",
                        format!($($text)+),
                        $crate::case::short(actual),
                        $crate::case::short(expected)
                    )));
                }
            }
        }
    };
}

/// The table of a module: `name [rules] [needs] (deadline in seconds);`.
macro_rules! cases {
    ($group:literal: $($name:ident $rules:tt $needs:tt $($seconds:literal)?;)+) => {
        pub(super) const CASES: &[$crate::case::Case] = &[$(
            $crate::case::Case {
                id: concat!($group, "::", stringify!($name)),
                rules: &$rules,
                since: $crate::case::EDITION,
                needs: &$needs,
                deadline: std::time::Duration::from_secs($crate::case::deadline(&[$($seconds)?])),
                run: |context| Box::pin($name(context)),
            },
        )+];
    };
}

pub(crate) use {cases, ensure, ensure_eq};

/// A minute, unless the table says otherwise.
pub(crate) const fn deadline(given: &[u64]) -> u64 {
    if given.is_empty() { 60 } else { given[0] }
}

/// `Debug`, cut to what fits a report.
pub(crate) fn short(value: &dyn fmt::Debug) -> String {
    const MOST: usize = 300;
    let text = format!("{value:?}");
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.chars().count()),
        None => text,
    }
}
