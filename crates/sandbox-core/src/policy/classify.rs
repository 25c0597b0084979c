//! Recognises a dead runtime in what an opaque command line wrote.

use crate::execution::ExitStatus;

/// Whether a command line that starts sandboxes failed because its runtime could not start, rather than because the command
/// exited non-zero (rule POL-3). Only for tools that offer nothing better than an exit code and text; a backend with structured
/// evidence must not ask, because a command could print such a text.
///
/// True only for a non-zero exit code, and only if standard error (bytes, any case) holds one of
/// - `failed to start sandbox:`, blanks, `start runtime:`
/// - `start runtime: request failed:`, blanks, a number from 500 to 599
/// - `docker daemon failed to start inside the sandbox`, as whole words
///
/// ```
/// use sandbox_core::ExitStatus;
/// use sandbox_core::policy::classify_runtime_failure;
/// let stderr = b"ERROR: failed to start sandbox: start runtime: request failed: 500";
/// assert!(classify_runtime_failure(ExitStatus::Code(1), stderr));
/// assert!(!classify_runtime_failure(ExitStatus::Code(0), stderr));
/// assert!(!classify_runtime_failure(ExitStatus::Signal(9), stderr));
/// assert!(!classify_runtime_failure(ExitStatus::Code(1), b"grep: no match"));
/// ```
pub fn classify_runtime_failure(exit: ExitStatus, stderr: &[u8]) -> bool {
    let mut classifier = RuntimeFailureClassifier::new();
    classifier.feed(stderr);
    classifier.finish(exit)
}

/// [`classify_runtime_failure`] for standard error that arrives in pieces, in constant memory.
///
/// ```
/// use sandbox_core::ExitStatus;
/// use sandbox_core::policy::RuntimeFailureClassifier;
/// let mut classifier = RuntimeFailureClassifier::new();
/// classifier.feed(b"failed to start sand");
/// classifier.feed(b"box: start runtime: no space left");
/// assert!(classifier.finish(ExitStatus::Code(125)));
/// ```
#[derive(Debug, Clone)]
pub struct RuntimeFailureClassifier {
    signatures: [Signature; 3],
    previous: Option<u8>,
    found: bool,
}

impl Default for RuntimeFailureClassifier {
    fn default() -> Self {
        RuntimeFailureClassifier::new()
    }
}

impl RuntimeFailureClassifier {
    /// Nothing read yet.
    ///
    /// ```
    /// let _ = sandbox_core::policy::RuntimeFailureClassifier::new();
    /// ```
    pub fn new() -> Self {
        RuntimeFailureClassifier {
            signatures: [
                Signature::new(b"failed to start sandbox:*start runtime:", false),
                Signature::new(b"start runtime: request failed:*5##", true),
                Signature::new(b"docker daemon failed to start inside the sandbox", true)
                    .at_word_start(),
            ],
            previous: None,
            found: false,
        }
    }

    /// Reads more of standard error.
    ///
    /// ```
    /// sandbox_core::policy::RuntimeFailureClassifier::new().feed(b"\xff");
    /// ```
    pub fn feed(&mut self, stderr: &[u8]) {
        for byte in stderr {
            if self.found {
                return;
            }
            for signature in &mut self.signatures {
                self.found |= signature.read(*byte, self.previous);
            }
            self.previous = Some(*byte);
        }
    }

    /// The verdict, now that the command has ended.
    ///
    /// ```
    /// use sandbox_core::{ExitStatus, policy::RuntimeFailureClassifier};
    /// assert!(!RuntimeFailureClassifier::new().finish(ExitStatus::Code(1)));
    /// ```
    pub fn finish(self, exit: ExitStatus) -> bool {
        let failed = matches!(exit, ExitStatus::Code(code) if code != 0);
        failed && (self.found || self.signatures.iter().any(Signature::matches_at_end))
    }
}

/// A text to search for: `*` stands for any number of blanks, `#` for a digit.
#[derive(Debug, Clone)]
struct Signature {
    pattern: &'static [u8],
    /// Bit `n`: the last bytes match the first `n` places of the pattern.
    matched: u64,
    word_start: bool,
    word_end: bool,
}

impl Signature {
    fn new(pattern: &'static [u8], word_end: bool) -> Self {
        debug_assert!(pattern.len() < 64, "one bit for each place");
        Signature {
            pattern,
            matched: 0,
            word_start: false,
            word_end,
        }
    }

    fn at_word_start(mut self) -> Self {
        self.word_start = true;
        self
    }

    /// Whether the signature is complete with this byte (or was before it, and the byte ends the word).
    fn read(&mut self, byte: u8, previous: Option<u8>) -> bool {
        if self.matches_at_end() && !is_word(byte) {
            return true;
        }
        if !self.word_start || !previous.is_some_and(is_word) {
            self.matched |= 1;
        }
        let mut next = 0;
        for (place, expected) in self.pattern.iter().enumerate() {
            if self.matched & (1 << place) == 0 {
                continue;
            }
            match expected {
                b'*' => {
                    // Blanks may be none, so that the place behind them is always tried too.
                    if is_blank(byte) {
                        next |= 1 << place;
                    }
                    self.matched |= 1 << (place + 1);
                }
                b'#' => next |= u64::from(byte.is_ascii_digit()) << (place + 1),
                expected if byte.eq_ignore_ascii_case(expected) => next |= 1 << (place + 1),
                _ => {}
            }
        }
        self.matched = next;
        !self.word_end && self.is_complete()
    }

    fn matches_at_end(&self) -> bool {
        self.word_end && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.matched & (1 << self.pattern.len()) != 0
    }
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: ExitStatus = ExitStatus::Code(1);

    const TRUE: [&str; 14] = [
        "ERROR: failed to start sandbox: start runtime: request failed: 500 Internal Server Error",
        "FAILED TO START SANDBOX: Start Runtime: x",
        "failed to start sandbox:START RUNTIME:",
        "failed to start sandbox: \n\t  start runtime:",
        "failed to start sandbox: start runtime: 409 port is already allocated",
        "start runtime: request failed:500",
        "start runtime: request failed: 503",
        "start runtime: request failed: 599, later",
        "start runtime: request failed: \r\n 500\n",
        "docker daemon failed to start inside the sandbox",
        "Docker daemon failed to start inside the sandbox.",
        "failed to start sandbox: no. failed to start sandbox: start runtime:",
        "start runtime: request failed: 5000; start runtime: request failed: 500",
        "failed to start failed to start sandbox: start runtime:",
    ];

    const FALSE: [&str; 16] = [
        "",
        "failed to start sandbox",
        "failed to start sandbox: start runtim",
        "failed to start sandbox: x start runtime:",
        "failed  to start sandbox: start runtime:",
        "request failed: 500",
        "start runtime: request failed: 499",
        "start runtime: request failed: 5000",
        "start runtime: request failed: 500a",
        "start runtime: request failed: 50",
        "start runtime: request failed: 5##",
        "start runtime: request failed: x500",
        "docker daemon failed to start",
        "docker daemon failed to start inside the sandboxes",
        "mydocker daemon failed to start inside the sandbox",
        "grep: no match",
    ];

    #[test]
    fn verdicts() {
        for stderr in TRUE {
            assert!(
                classify_runtime_failure(FAILED, stderr.as_bytes()),
                "{stderr}"
            );
            assert!(
                classify_runtime_failure(ExitStatus::Code(-1), stderr.as_bytes()),
                "{stderr}"
            );
        }
        for stderr in FALSE {
            assert!(
                !classify_runtime_failure(FAILED, stderr.as_bytes()),
                "{stderr}"
            );
        }
    }

    #[test]
    fn success_and_death_by_signal_are_never_runtime_failures() {
        for exit in [ExitStatus::Code(0), ExitStatus::Signal(9)] {
            assert!(!classify_runtime_failure(exit, TRUE[0].as_bytes()));
        }
    }

    #[test]
    fn bytes_that_are_not_text_do_not_hide_a_signature() {
        let stderr = [&b"\xff\xfe\x80"[..], TRUE[5].as_bytes(), b"\xff"].concat();
        assert!(classify_runtime_failure(FAILED, &stderr));
    }

    #[test]
    fn cutting_does_not_matter() {
        for stderr in TRUE.iter().chain(&FALSE) {
            for size in [1, 2, 7] {
                let mut classifier = RuntimeFailureClassifier::new();
                for piece in stderr.as_bytes().chunks(size) {
                    classifier.feed(piece);
                }
                let whole = classify_runtime_failure(FAILED, stderr.as_bytes());
                assert_eq!(classifier.finish(FAILED), whole, "{stderr}");
            }
        }
    }
}
