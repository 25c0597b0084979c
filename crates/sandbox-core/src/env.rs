//! Environment variables whose values stay out of logs.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result};

/// Environment variables: names and values as bytes, sorted by name. `Debug` shows names and lengths, never values.
///
/// ```
/// use sandbox_core::Env;
/// let env = Env::new().with("TOKEN", "secret").with("EMPTY", "");
/// assert!(!format!("{env:?}").contains("secret"));
/// assert_eq!(env.get("TOKEN"), Some(&b"secret"[..]));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<Vec<u8>, Vec<u8>>);

impl Env {
    /// No variables.
    ///
    /// ```
    /// assert!(sandbox_core::Env::new().is_empty());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a variable; a later value wins. Bad names are refused when the environment is used
    /// ([`check`](Self::check)).
    ///
    /// ```
    /// let env = sandbox_core::Env::new().with("A", "1").with("A", "2");
    /// assert_eq!(env.get("A"), Some(&b"2"[..]));
    /// ```
    #[must_use]
    pub fn with(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a variable in place.
    ///
    /// ```
    /// let mut env = sandbox_core::Env::new();
    /// env.set("A", b"\xff".to_vec());
    /// assert_eq!(env.len(), 1);
    /// ```
    pub fn set(&mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.0.insert(name.into(), value.into());
    }

    /// This environment with `other` over it: where both have a name, `other`'s value wins.
    ///
    /// ```
    /// use sandbox_core::Env;
    /// let merged = Env::new().with("A", "1").merged(&Env::new().with("A", "2"));
    /// assert_eq!(merged.get("A"), Some(&b"2"[..]));
    /// ```
    #[must_use]
    pub fn merged(mut self, other: &Env) -> Env {
        self.0.extend(
            other
                .0
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        self
    }

    /// A variable's value.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Env::new().get("A"), None);
    /// ```
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.0.get(name.as_ref()).map(Vec::as_slice)
    }

    /// Names and values, sorted by name.
    ///
    /// ```
    /// let env = sandbox_core::Env::new().with("B", "2").with("A", "1");
    /// assert_eq!(env.iter().next(), Some((&b"A"[..], &b"1"[..])));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// How many variables there are.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Env::new().len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    ///
    /// ```
    /// assert!(sandbox_core::Env::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that every name and value can be handed to a program (rule EXEC-9).
    ///
    /// # Errors
    /// `InvalidSpec` for a name that is empty or holds `=` or NUL, or a value that holds NUL; the text never shows a value.
    ///
    /// ```
    /// assert!(sandbox_core::Env::new().with("A-B", "x").check().is_ok());
    /// assert!(sandbox_core::Env::new().with("A=B", "x").check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        for (name, value) in self.iter() {
            let shown = String::from_utf8_lossy(name);
            let reason = if name.is_empty() {
                "a name is empty".to_owned()
            } else if name.contains(&b'=') || name.contains(&0) {
                format!("the name {shown:?} holds '=' or a NUL byte")
            } else if value.contains(&0) {
                format!("the value of {shown:?} holds a NUL byte")
            } else {
                continue;
            };
            return Err(Error::invalid_spec("env", reason));
        }
        Ok(())
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.iter().map(|(name, value)| {
            (
                String::from_utf8_lossy(name).into_owned(),
                format!("<{} bytes>", value.len()),
            )
        });
        f.debug_map().entries(entries).finish()
    }
}

impl<N: Into<Vec<u8>>, V: Into<Vec<u8>>> FromIterator<(N, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Env(variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect())
    }
}
