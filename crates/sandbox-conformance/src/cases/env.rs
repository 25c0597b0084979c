//! EXEC-9: the environment.

use std::collections::BTreeMap;

use sandbox_core::{Backend, Cmd, Env, ErrorKind};

use crate::case::{Done, Stop, cases, ensure, ensure_eq};
use crate::context::{Context, Place, refused, unique, within};

cases! { "env":
    minimal_base_is_there ["EXEC-9"] [];
    environment_of_the_host_does_not_leak ["EXEC-9", "ISO-1"] [];
    values_arrive_byte_for_byte ["EXEC-9"] [];
    odd_names_are_passed_on ["EXEC-9"] [];
    later_value_wins ["EXEC-9"] [];
    bad_names_are_refused_without_showing_values ["EXEC-9"] [];
    values_are_not_shown_by_debug ["EXEC-9"] [];
    values_are_in_no_argv_of_the_host ["EXEC-9"] [];
}

/// The environment as a program sees it, without a shell that would drop or add names.
async fn environment(place: &Place, cmd: Cmd) -> Done<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut cmd = cmd;
    cmd.program = Cmd::argv(["env", "-0"]).program;
    let result = place.run(cmd).await?;
    ensure!(result.success(), "env -0 did not succeed");
    let mut variables = BTreeMap::new();
    for entry in result
        .stdout
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
    {
        let at = entry.iter().position(|byte| *byte == b'=');
        let at = at.ok_or_else(|| Stop::fail("an entry of the environment has no ="))?;
        let before = variables.insert(entry[..at].to_vec(), entry[at + 1..].to_vec());
        ensure!(
            before.is_none(),
            "{} is there twice",
            String::from_utf8_lossy(&entry[..at])
        );
    }
    Ok(variables)
}

async fn minimal_base_is_there(cx: Context) -> Done {
    let place = cx.place().await?;
    let variables = environment(&place, Cmd::argv(["x"])).await?;
    for name in ["PATH", "HOME", "TMPDIR", "LANG"] {
        let value = variables.get(name.as_bytes());
        ensure!(
            value.is_some_and(|value| !value.is_empty()),
            "{name} is not set"
        );
    }
    let script = r#"cd "$HOME" && [ "${HOME#/}" != "$HOME" ] && echo x >"$TMPDIR/file" && cat "$TMPDIR/file""#;
    ensure_eq!(place.out(script).await?, "x\n", "use of HOME and TMPDIR");
    Ok(())
}

async fn environment_of_the_host_does_not_leak(cx: Context) -> Done {
    /// What a sandbox may have of its own, so that the same name on the host says nothing.
    const OWN: [&str; 16] = [
        "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "USER", "LOGNAME", "SHELL",
        "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "TZ",
    ];
    let place = cx.place().await?;
    let inside = environment(&place, Cmd::argv(["x"])).await?;
    let mut compared = 0;
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.into_encoded_bytes(), value.into_encoded_bytes());
        if OWN.iter().any(|own| own.as_bytes() == name) || value.is_empty() {
            continue;
        }
        compared += 1;
        let shown = String::from_utf8_lossy(&name);
        ensure!(
            inside.get(&name) != Some(&value),
            "{shown} of the host is seen inside"
        );
    }
    if compared == 0 {
        return Err(Stop::Unavailable(
            "the host has no variable that could leak".into(),
        ));
    }
    Ok(())
}

async fn values_arrive_byte_for_byte(cx: Context) -> Done {
    let place = cx.place().await?;
    let long = "long ".repeat(20_000);
    let values: [(&str, &[u8]); 12] = [
        ("NEWLINE", b"a\nb\n"),
        ("QUOTES", b"it's \"1\" `2`"),
        ("EQUALS", b"a=b=c"),
        ("EMPTY", b""),
        ("DOLLAR", b"$HOME $(id) ${x}"),
        ("BACKSLASH", b"\\n\\\\"),
        ("BYTES", b"\xff\xfe\x80"),
        ("SPACES", b"  a  b  "),
        ("DASH", b"-rf"),
        ("UNICODE", "žluťoučký 🦀".as_bytes()),
        ("GLOB", b"* ? [a]"),
        ("LONG", long.as_bytes()),
    ];
    let mut cmd = Cmd::argv(["x"]);
    for (name, value) in values {
        cmd = cmd.env(name, value);
    }
    let inside = environment(&place, cmd).await?;
    for (name, value) in values {
        let found = inside.get(name.as_bytes()).map(Vec::as_slice);
        ensure_eq!(found, Some(value), "the value of {name}");
    }
    Ok(())
}

async fn odd_names_are_passed_on(cx: Context) -> Done {
    let place = cx.place().await?;
    let names: [&[u8]; 5] = [b"A-B", b"a.b", b"1", b"with space", b"\xff"];
    let mut cmd = Cmd::argv(["x"]);
    for name in names {
        cmd = cmd.env(name, "value");
    }
    let inside = environment(&place, cmd).await?;
    for name in names {
        let found = inside.get(name).map(Vec::as_slice);
        ensure_eq!(
            found,
            Some(&b"value"[..]),
            "the value of {:?}",
            String::from_utf8_lossy(name)
        );
    }
    Ok(())
}

async fn later_value_wins(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.env = Env::new()
        .with("BOTH", "spec")
        .with("SPEC", "spec")
        .with("LANG", "xx_YY");
    let place = cx.place_of(spec).await?;
    let cmd = Cmd::argv(["x"])
        .env("BOTH", "command")
        .env("COMMAND", "command");
    let inside = environment(&place, cmd).await?;
    for (name, value) in [
        ("BOTH", "command"),
        ("SPEC", "spec"),
        ("COMMAND", "command"),
        ("LANG", "xx_YY"),
    ] {
        let found = inside.get(name.as_bytes()).map(Vec::as_slice);
        ensure_eq!(found, Some(value.as_bytes()), "the value of {name}");
    }
    let inside = environment(&place, Cmd::argv(["x"])).await?;
    let found = inside.get(&b"BOTH"[..]).map(Vec::as_slice);
    ensure_eq!(
        found,
        Some(&b"spec"[..]),
        "the value of BOTH in the next command"
    );
    Ok(())
}

async fn bad_names_are_refused_without_showing_values(cx: Context) -> Done {
    let place = cx.place().await?;
    for name in ["", "A=B", "A\0B", "="] {
        let cmd = Cmd::argv(["touch", "touched"]).env(name, "hidden-value");
        let error = refused(
            place.start(cmd).await,
            ErrorKind::InvalidSpec,
            &format!("the name {name:?}"),
        )?;
        ensure!(
            !error.to_string().contains("hidden-value"),
            "the error shows the value: {error}"
        );
    }
    let cmd = Cmd::argv(["touch", "touched"]).env("A", "hidden-value\0");
    let error = refused(
        place.start(cmd).await,
        ErrorKind::InvalidSpec,
        "a value with NUL",
    )?;
    ensure!(
        !error.to_string().contains("hidden-value"),
        "the error shows the value: {error}"
    );
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    let mut spec = cx.spec()?;
    spec.env = Env::new().with("A=B", "hidden-value");
    let error = refused(
        cx.backend().create(spec).await,
        ErrorKind::InvalidSpec,
        "a bad name in a spec",
    )?;
    ensure!(
        !error.to_string().contains("hidden-value"),
        "the error shows the value: {error}"
    );
    Ok(())
}

async fn values_are_not_shown_by_debug(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.env = Env::new().with("TOKEN", "hidden-value");
    let cmd = Cmd::argv(["true"]).env("TOKEN", "hidden-value");
    let shown = format!("{spec:?} {cmd:?} {:?}", cx.backend());
    ensure!(
        !shown.contains("hidden-value"),
        "Debug output of a spec or command shows a value"
    );
    let place = cx.place_of(spec).await?;
    let execution = place.start(cmd).await?;
    let shown = format!("{execution:?} {:?} {:?}", place.handle, cx.backend());
    ensure!(
        !shown.contains("hidden-value"),
        "Debug output of an execution or backend shows a value"
    );
    Ok(())
}

/// Anybody on the host can read the arguments of every process.
async fn values_are_in_no_argv_of_the_host(cx: Context) -> Done {
    if !cfg!(target_os = "linux") {
        return Err(Stop::Unavailable("the host has no /proc".into()));
    }
    let secret = format!("secret-{:016x}", unique());
    let mut spec = cx.spec()?;
    spec.env = Env::new().with("OF_SPEC", secret.clone());
    let place = cx.place_of(spec).await?;
    let script = r#"printf %s "$OF_SPEC$OF_COMMAND"; sleep 300"#;
    let mut execution = place
        .start(Cmd::shell(script).env("OF_COMMAND", secret.clone()))
        .await?;
    let limit = std::time::Duration::from_secs(10);
    let chunk = within(limit, "the values inside", execution.next_chunk()).await?;
    ensure_eq!(
        chunk.map(|chunk| chunk.data.len()),
        Some(2 * secret.len()),
        "bytes of the values inside"
    );
    let mut seen = 0;
    for entry in std::fs::read_dir("/proc")? {
        // Processes come and go; what cannot be read any more shows nothing.
        let Ok(arguments) = std::fs::read(entry?.path().join("cmdline")) else {
            continue;
        };
        seen += usize::from(!arguments.is_empty());
        let leaks = arguments
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        ensure!(!leaks, "a value is an argument of a process of the host");
    }
    ensure!(seen > 0, "no process of the host could be looked at");
    execution.kill();
    Ok(())
}
