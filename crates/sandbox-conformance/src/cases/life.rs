//! LIFE-1 to LIFE-9: create, destroy, handles.

use std::collections::BTreeSet;
use std::time::Duration;

use sandbox_core::{
    Backend, Bind, ByteStream, Cmd, ComposeSource, ContainerName, ContainerSpec, EndedBy,
    ErrorKind, Handle, Lifetime, Limits, RootFs, SandboxId, SandboxPath, Source,
};

use crate::case::{Done, Stop, cases, ensure, ensure_eq, short};
use crate::context::{Context, Place, eventually, marker, refused, refused_as, unique, within};
use crate::needs::{Ability, Need};

cases! { "life":
    handle_carries_the_name_of_the_spec ["LIFE-1"] [];
    next_command_works_after_create ["LIFE-1"] [];
    ids_are_never_used_again ["LIFE-1"] [];
    names_outside_the_alphabet_are_refused ["LIFE-2"] [];
    names_at_the_edge_of_the_alphabet_work ["LIFE-2"] [];
    name_of_a_live_sandbox_is_taken ["LIFE-2"] [];
    one_of_many_creates_of_a_name_wins ["LIFE-2"] [];
    bad_specs_are_refused_before_anything ["LIFE-3", "LIFE-8", "EXEC-9", "LIM-1"] [];
    spec_sets_env_and_workdir ["LIFE-3", "EXEC-1", "EXEC-9"] [];
    destroyed_handle_is_unknown_to_every_operation ["LIFE-4", "LIFE-8"] [];
    foreign_handle_is_unknown_to_every_operation ["LIFE-4", "LIFE-8"] [];
    destroy_frees_the_name ["LIFE-4", "LIFE-2"] [];
    one_of_many_destroys_wins ["LIFE-4"] [];
    destroy_ends_background_processes ["LIFE-4", "LIFE-5"] [Need::Has(Ability::Binds)];
    destroy_delivers_the_results_of_running_commands ["LIFE-5", "EXEC-7"] [];
    destroy_ends_commands_that_ignore_signals ["LIFE-5", "EXEC-4"] [];
    failed_create_leaves_nothing ["LIFE-6"] [Need::Has(Ability::Workdir)];
    dropped_create_leaves_nothing ["LIFE-6"] [];
    detached_sandbox_is_listed_and_attached ["LIFE-7"] [Need::Has(Ability::Detached)];
    detached_sandbox_survives_its_backend ["LIFE-7"] [Need::Has(Ability::Detached)];
    detached_sandbox_ends_at_its_time_to_live ["LIFE-7"] [Need::Has(Ability::Detached)];
    unknown_id_cannot_be_attached ["LIFE-7"] [Need::Has(Ability::Detached)];
    handle_is_checked_before_arguments ["LIFE-8"] [];
    operations_do_not_wait_for_a_long_command ["LIFE-8"] [];
    sandboxes_run_side_by_side ["LIFE-8"] [] 120;
    emptied_workdir_does_not_break_destroy ["LIFE-9"] [];
    removed_workdir_does_not_break_destroy ["LIFE-9", "EXEC-1"] [];
    closed_directories_do_not_break_destroy ["LIFE-9", "LIFE-4"] [];
    deep_directories_do_not_break_destroy ["LIFE-9", "LIFE-4"] [];
}

async fn handle_carries_the_name_of_the_spec(cx: Context) -> Done {
    let spec = cx.spec()?;
    let name = spec.name.clone();
    let place = cx.place_of(spec).await?;
    ensure_eq!(place.handle.name, name, "the handle's name");
    ensure!(
        place.handle.workdir.is_absolute(),
        "the workdir {} is not absolute",
        place.handle.workdir
    );
    Ok(())
}

async fn next_command_works_after_create(cx: Context) -> Done {
    for _ in 0..5 {
        let place = cx.place().await?;
        ensure_eq!(
            place.out("echo ready").await?,
            "ready\n",
            "output right after create"
        );
        place.destroy().await?;
    }
    Ok(())
}

async fn ids_are_never_used_again(cx: Context) -> Done {
    let name = cx.name()?;
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        let mut spec = cx.spec()?;
        spec.name = name.clone();
        let place = cx.place_of(spec).await?;
        ensure!(
            seen.insert(place.handle.id.clone()),
            "the id {} came twice",
            place.handle.id
        );
        place.destroy().await?;
    }
    Ok(())
}

async fn names_outside_the_alphabet_are_refused(_: Context) -> Done {
    let long = "a".repeat(64);
    for bad in [
        "", ".", "..", "../x", "/abs", "a/../b", "a\0b", "a b", "-a", "_a", "é", "a\n", &long,
    ] {
        refused(
            ContainerName::new(bad),
            ErrorKind::InvalidSpec,
            &format!("the name {bad:?}"),
        )?;
    }
    Ok(())
}

async fn names_at_the_edge_of_the_alphabet_work(cx: Context) -> Done {
    let start = cx.name()?;
    let long = format!("{start}{}", "x".repeat(63 - start.as_str().len()));
    for good in [
        long,
        format!("{start}_.-"),
        format!("{start}..a"),
        format!("{start}A-Z"),
    ] {
        let mut spec = cx.spec()?;
        spec.name = ContainerName::new(good.clone())?;
        let place = cx.place_of(spec).await?;
        ensure_eq!(place.handle.name.as_str(), good, "the handle's name");
        ensure_eq!(place.out("echo ok").await?, "ok\n", "output in {good}");
        place.destroy().await?;
    }
    Ok(())
}

async fn name_of_a_live_sandbox_is_taken(cx: Context) -> Done {
    let spec = cx.spec()?;
    let again = spec.clone();
    let place = cx.place_of(spec).await?;
    place.write("file", "first").await?;
    refused(
        cx.backend().create(again).await,
        ErrorKind::AlreadyExists,
        "a second create",
    )?;
    ensure_eq!(
        place.read("file").await?,
        "first",
        "the first sandbox's file afterwards"
    );
    Ok(())
}

async fn one_of_many_creates_of_a_name_wins(cx: Context) -> Done {
    let name = cx.name()?;
    let mut creates = Vec::new();
    for _ in 0..6 {
        let (cx, mut spec) = (cx.clone(), cx.spec()?);
        spec.name = name.clone();
        creates.push(tokio::spawn(async move { cx.backend().create(spec).await }));
    }
    let mut made = 0;
    for create in creates {
        match create.await.map_err(Stop::fail)? {
            Ok(_) => made += 1,
            refusal => drop(refused(
                refusal,
                ErrorKind::AlreadyExists,
                "a create that lost",
            )?),
        }
    }
    ensure_eq!(made, 1, "sandboxes of one name");
    Ok(())
}

async fn bad_specs_are_refused_before_anything(cx: Context) -> Done {
    let memory = |bytes| Limits {
        memory: Some(bytes),
        ..Limits::default()
    };
    let cpus = |cpus| Limits {
        cpus: Some(cpus),
        ..Limits::default()
    };
    let bind = |source: &str, target: &str| -> Done<Vec<Bind>> {
        Ok(vec![Bind::read_only(source, SandboxPath::new(target)?)])
    };
    let changed = |change: &dyn Fn(&mut ContainerSpec)| -> Done<ContainerSpec> {
        let mut spec = cx.spec()?;
        change(&mut spec);
        Ok(spec)
    };
    let work = SandboxPath::new("work")?;
    let (relative, root, up) = (
        bind("data", "/data")?,
        bind("/tmp", "/")?,
        bind("/tmp", "/a/../b")?,
    );
    let specs = [
        ("an empty variable name", changed(&|s| s.env.set("", "x"))?),
        (
            "a variable name with =",
            changed(&|s| s.env.set("A=B", "x"))?,
        ),
        ("a variable with NUL", changed(&|s| s.env.set("A", "x\0y"))?),
        (
            "a relative workdir",
            changed(&|s| s.workdir = Some(work.clone()))?,
        ),
        ("no memory", changed(&|s| s.limits = memory(0))?),
        ("no processes", changed(&|s| s.limits.pids = Some(0))?),
        ("no disk", changed(&|s| s.limits.disk = Some(0))?),
        ("negative cpus", changed(&|s| s.limits = cpus(-1.0))?),
        (
            "cpus that are no number",
            changed(&|s| s.limits = cpus(f64::NAN))?,
        ),
        (
            "a relative bind source",
            changed(&|s| s.binds = relative.clone())?,
        ),
        (
            "a bind over the root",
            changed(&|s| s.binds = root.clone())?,
        ),
        ("a bind target with ..", changed(&|s| s.binds = up.clone())?),
        (
            "no time to live",
            changed(&|s| {
                s.lifetime = Lifetime::Detached {
                    ttl: Duration::ZERO,
                }
            })?,
        ),
        (
            "an empty compose file",
            changed(&|s| s.source = Source::Compose(ComposeSource::new(" \n", "app")))?,
        ),
    ];
    for (what, spec) in specs {
        refused(
            cx.backend().create(spec).await,
            ErrorKind::InvalidSpec,
            what,
        )?;
    }
    ensure_eq!(
        cx.listed().await?.unwrap_or_default().len(),
        0,
        "sandboxes after refused specs"
    );
    Ok(())
}

async fn spec_sets_env_and_workdir(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.env.set("OF_SPEC", "a\nb");
    spec.workdir = Some(SandboxPath::new("/tmp/deep/er")?);
    let place = cx.place_of(spec).await?;
    ensure_eq!(
        place.handle.workdir.as_bytes(),
        b"/tmp/deep/er",
        "the handle's workdir"
    );
    ensure_eq!(
        place.out(r#"pwd; printf %s "$OF_SPEC""#).await?,
        "/tmp/deep/er\na\nb",
        "workdir and variable"
    );
    place.write("file", "x").await?;
    ensure_eq!(
        place.out("cat /tmp/deep/er/file").await?,
        "x",
        "a file below the workdir"
    );
    Ok(())
}

/// Arguments that are invalid too, so that the order of checks shows.
async fn every_operation_says_unknown_handle(cx: &Context, handle: &Handle) -> Done {
    let backend = cx.backend();
    let path = SandboxPath::new("file")?;
    let garbage = || ByteStream::from_bytes("no gzip at all");
    let unknown = ErrorKind::UnknownHandle;
    refused(
        backend.exec(handle, Cmd::argv(["true"])).await,
        unknown,
        "exec",
    )?;
    refused(
        backend.exec(handle, Cmd::argv(["a\0b"])).await,
        unknown,
        "exec with NUL",
    )?;
    refused(
        backend.capture_files(handle, &[]).await,
        unknown,
        "capture_files of nothing",
    )?;
    refused(
        backend.copy_to(handle, Vec::new()).await,
        unknown,
        "copy_to of nothing",
    )?;
    refused(
        backend.read_file_at(handle, &path).await,
        unknown,
        "read_file_at",
    )?;
    refused(
        backend.write_file_at(handle, &path, garbage()).await,
        unknown,
        "write_file_at",
    )?;
    refused(backend.stat_at(handle, &path).await, unknown, "stat_at")?;
    refused(
        backend.list_dir_at(handle, &path).await,
        unknown,
        "list_dir_at",
    )?;
    refused(
        backend.delete_file_at(handle, &path).await,
        unknown,
        "delete_file_at",
    )?;
    refused(
        backend.read_tree_at(handle, &path).await,
        unknown,
        "read_tree_at",
    )?;
    refused(
        backend.write_tree_at(handle, &path, garbage()).await,
        unknown,
        "write_tree_at of garbage",
    )?;
    refused(backend.dial(handle, 0).await, unknown, "dial")?;
    refused(backend.snapshot(handle).await, unknown, "snapshot")?;
    refused(backend.destroy(handle).await, unknown, "destroy")?;
    Ok(())
}

async fn destroyed_handle_is_unknown_to_every_operation(cx: Context) -> Done {
    let place = cx.place().await?;
    place.destroy().await?;
    every_operation_says_unknown_handle(&cx, &place.handle).await
}

async fn foreign_handle_is_unknown_to_every_operation(cx: Context) -> Done {
    let place = cx.place().await?;
    // Its name and workdir are those of a live sandbox; the id is what counts.
    let id = SandboxId::new(format!("never-made-{}", unique()))?;
    let foreign = Handle::new(place.handle.name.clone(), id, place.handle.workdir.clone());
    every_operation_says_unknown_handle(&cx, &foreign).await?;
    ensure_eq!(
        place.out("echo alive").await?,
        "alive\n",
        "output of the sandbox whose name was used"
    );
    Ok(())
}

async fn destroy_frees_the_name(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "old").await?;
    place.destroy().await?;
    let mut spec = cx.spec()?;
    spec.name = place.handle.name.clone();
    let next = cx.place_of(spec).await?;
    refused(
        next.read("file").await,
        ErrorKind::NotFound,
        "a file of the destroyed sandbox",
    )?;
    refused(
        place.start(Cmd::argv(["true"])).await,
        ErrorKind::UnknownHandle,
        "the old handle",
    )?;
    Ok(())
}

async fn one_of_many_destroys_wins(cx: Context) -> Done {
    let place = cx.place().await?;
    let destroys: Vec<_> = (0..6)
        .map(|_| {
            let place = place.clone();
            tokio::spawn(async move { place.destroy().await })
        })
        .collect();
    let mut done = 0;
    for destroy in destroys {
        match destroy.await.map_err(Stop::fail)? {
            Ok(()) => done += 1,
            refusal => drop(refused(
                refusal,
                ErrorKind::UnknownHandle,
                "a destroy that lost",
            )?),
        }
    }
    ensure_eq!(done, 1, "destroys that succeeded");
    Ok(())
}

async fn destroy_ends_background_processes(cx: Context) -> Done {
    let host = cx.host_dir()?.join("shared");
    std::fs::create_dir(&host)?;
    let mut spec = cx.spec()?;
    spec.binds
        .push(Bind::writable(&host, SandboxPath::new("/shared")?));
    let place = cx.place_of(spec).await?;
    let script =
        "(trap '' HUP TERM; while :; do echo x >>/shared/log; sleep 0.02; done) >/dev/null 2>&1 &";
    place.out(script).await?;
    let log = host.join("log");
    let size = || std::fs::metadata(&log).map_or(0, |found| found.len());
    eventually!(
        Duration::from_secs(5),
        "the background process to write",
        Ok(size() > 0),
    )?;
    place.destroy().await?;
    let at_destroy = size();
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure_eq!(size(), at_destroy, "size of the log after destroy");
    Ok(())
}

async fn destroy_delivers_the_results_of_running_commands(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut running = Vec::new();
    for _ in 0..3 {
        let mut execution = place.start(Cmd::shell("echo before; sleep 300")).await?;
        let first = within(
            Duration::from_secs(10),
            "the first output",
            execution.next_chunk(),
        )
        .await?;
        ensure!(first.is_some(), "the command ended before destroy");
        running.push(execution);
    }
    place.destroy().await?;
    for mut execution in running {
        let result = within(
            Duration::from_secs(4),
            "the result after destroy",
            execution.wait(),
        )
        .await?;
        ensure_eq!(result.ended_by, EndedBy::Destroyed, "end");
        ensure_eq!(&result.stdout[..], b"before\n", "kept output");
        ensure!(
            !result.success(),
            "a destroyed command counts as success: {}",
            short(&result)
        );
    }
    Ok(())
}

async fn destroy_ends_commands_that_ignore_signals(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done";
    let mut execution = place.start(Cmd::shell(script)).await?;
    within(
        Duration::from_secs(10),
        "the first output",
        execution.next_chunk(),
    )
    .await?;
    within(Duration::from_secs(5), "destroy", place.destroy()).await??;
    let result = within(
        Duration::from_secs(4),
        "the result after destroy",
        execution.wait(),
    )
    .await?;
    ensure_eq!(result.ended_by, EndedBy::Destroyed, "end");
    Ok(())
}

async fn failed_create_leaves_nothing(cx: Context) -> Done {
    let name = cx.name()?;
    let missing = cx.host_dir()?.join("no-such-root");
    let mut spec = ContainerSpec::new(
        name.clone(),
        Source::Workdir {
            root: RootFs::Dir(missing),
        },
    );
    spec.network = cx.spec()?.network;
    let kinds = [
        ErrorKind::InvalidSpec,
        ErrorKind::NotFound,
        ErrorKind::Unsupported,
    ];
    refused_as(
        cx.backend().create(spec).await,
        &kinds,
        "a create from a missing root",
    )?;
    ensure_eq!(
        cx.listed().await?.unwrap_or_default().len(),
        0,
        "sandboxes after a failed create"
    );
    let mut plain = cx.spec()?;
    plain.name = name;
    cx.place_of(plain).await?;
    Ok(())
}

async fn dropped_create_leaves_nothing(cx: Context) -> Done {
    for micros in [0, 200, 500, 1000, 2000, 4000, 8000, 16000, 32000] {
        let spec = cx.spec()?;
        let name = spec.name.clone();
        let limit = Duration::from_micros(micros);
        if let Ok(made) = tokio::time::timeout(limit, cx.backend().create(spec)).await {
            cx.backend().destroy(&made?).await?;
        }
        eventually!(
            Duration::from_secs(5),
            "a dropped create to be undone",
            Ok(cx.listed().await?.unwrap_or_default().is_empty()),
        )?;
        let mut again = cx.spec()?;
        again.name = name;
        eventually!(
            Duration::from_secs(5),
            "the name to be free",
            match cx.backend().create(again.clone()).await {
                Ok(handle) => {
                    cx.backend().destroy(&handle).await?;
                    Ok(true)
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error.into()),
            },
        )?;
    }
    Ok(())
}

async fn detached(cx: &Context, ttl: Duration) -> Done<Place> {
    let mut spec = cx.spec()?;
    spec.lifetime = Lifetime::Detached { ttl };
    cx.place_of(spec).await
}

async fn detached_sandbox_is_listed_and_attached(cx: Context) -> Done {
    let place = detached(&cx, Duration::from_secs(120)).await?;
    place.write("file", "x").await?;
    let listed = cx.backend().list().await?;
    let found = listed.iter().find(|handle| handle.id == place.handle.id);
    ensure_eq!(found, Some(&place.handle), "the handle in the list");
    let attached = cx.backend().attach(&place.handle.id).await?;
    ensure_eq!(attached, place.handle, "the attached handle");
    let again = Place {
        handle: attached,
        ..place.clone()
    };
    ensure_eq!(
        again.read("file").await?,
        "x",
        "a file through the attached handle"
    );
    Ok(())
}

async fn detached_sandbox_survives_its_backend(cx: Context) -> Done {
    let place = detached(&cx, Duration::from_secs(120)).await?;
    place.write("file", "x").await?;
    let marker = marker();
    place
        .run(crate::context::marked(
            "sleep \"$1\" >/dev/null 2>&1 &",
            &marker,
        ))
        .await?;
    // Another backend over the same state stands for another process.
    let second = cx.second_backend().await?;
    let handle = second.attach(&place.handle.id).await?;
    let other = Place {
        backend: std::sync::Arc::new(crate::tracked::Tracked::new(second)),
        handle,
    };
    ensure_eq!(
        other.read("file").await?,
        "x",
        "a file seen by the second backend"
    );
    ensure_eq!(
        other.count(&marker).await?,
        1,
        "the background process seen by the second backend"
    );
    other.destroy().await?;
    cx.backend().forget(&place.handle.id);
    refused(
        other.read("file").await,
        ErrorKind::UnknownHandle,
        "a read after destroy",
    )?;
    Ok(())
}

async fn detached_sandbox_ends_at_its_time_to_live(cx: Context) -> Done {
    let place = detached(&cx, Duration::from_secs(2)).await?;
    place.out("true").await?;
    let id = place.handle.id.clone();
    eventually!(
        Duration::from_secs(6),
        "the sandbox to end at its time to live",
        {
            Ok(!cx
                .backend()
                .list()
                .await?
                .iter()
                .any(|handle| handle.id == id))
        },
    )?;
    refused(
        place.start(Cmd::argv(["true"])).await,
        ErrorKind::UnknownHandle,
        "exec after the end",
    )?;
    refused(
        cx.backend().attach(&id).await,
        ErrorKind::UnknownHandle,
        "attach after the end",
    )?;
    cx.backend().forget(&id);
    Ok(())
}

async fn unknown_id_cannot_be_attached(cx: Context) -> Done {
    let id = SandboxId::new(format!("never-made-{}", unique()))?;
    refused(
        cx.backend().attach(&id).await,
        ErrorKind::UnknownHandle,
        "attach",
    )?;
    Ok(())
}

/// Two things are wrong; the handle comes first, then the arguments, then input and output.
async fn handle_is_checked_before_arguments(cx: Context) -> Done {
    let place = cx.place().await?;
    let both = Cmd::argv(["a\0b"]).cwd("/no/such")?;
    refused(
        place.start(both).await,
        ErrorKind::InvalidSpec,
        "NUL and a missing cwd",
    )?;
    let file = SandboxPath::new("file")?;
    place.write("file", "x").await?;
    let below = SandboxPath::new("file/sub")?;
    let garbage = ByteStream::from_bytes("no gzip");
    let kinds = [ErrorKind::InvalidArchive, ErrorKind::NotADirectory];
    refused_as(
        cx.backend()
            .write_tree_at(&place.handle, &below, garbage)
            .await,
        &kinds,
        "garbage below a file",
    )?;
    place.destroy().await?;
    let garbage = ByteStream::from_bytes("no gzip");
    let refusal = cx
        .backend()
        .write_tree_at(&place.handle, &file, garbage)
        .await;
    refused(
        refusal,
        ErrorKind::UnknownHandle,
        "garbage to a destroyed sandbox",
    )?;
    Ok(())
}

async fn operations_do_not_wait_for_a_long_command(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    let mut long = place.start(Cmd::shell("sleep 300")).await?;
    let limit = Duration::from_secs(2);
    ensure_eq!(
        within(limit, "a read", place.read("file")).await??,
        "x",
        "the file"
    );
    within(limit, "a write", place.write("other", "y")).await??;
    within(limit, "a listing", place.list(".")).await??;
    within(limit, "a tree", place.read_tree(".")).await??;
    ensure_eq!(
        within(limit, "a command", place.out("echo quick")).await??,
        "quick\n",
        "output"
    );
    long.kill();
    within(Duration::from_secs(4), "the killed command", long.wait()).await?;
    Ok(())
}

async fn sandboxes_run_side_by_side(cx: Context) -> Done {
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let cx = cx.clone();
            tokio::spawn(async move {
                let place = cx.place().await?;
                place.write("number", number.to_string()).await?;
                let said = place.out("cat number; sleep 0.2; ls").await?;
                ensure_eq!(
                    said,
                    format!("{number}number\n"),
                    "what sandbox {number} sees"
                );
                place.destroy().await?;
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        let done: Done = task.await.map_err(Stop::fail)?;
        done?;
    }
    Ok(())
}

async fn emptied_workdir_does_not_break_destroy(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir -p a/b; echo x >a/b/c; echo y >.hidden; find . -mindepth 1 -delete 2>/dev/null || rm -rf a .hidden").await?;
    ensure_eq!(
        place.list(".").await?.len(),
        0,
        "entries of the emptied workdir"
    );
    ensure_eq!(
        place.out("echo on").await?,
        "on\n",
        "output in the emptied workdir"
    );
    place.destroy().await?;
    Ok(())
}

async fn removed_workdir_does_not_break_destroy(cx: Context) -> Done {
    let place = cx.place().await?;
    let workdir = place.handle.workdir.to_text();
    // Where the workdir is a mount it cannot be removed, and everything must work on.
    let removed = place
        .sh(&format!("cd / && rmdir '{workdir}'"))
        .await?
        .success();
    if removed {
        let error = refused(
            place.start(Cmd::argv(["true"])).await,
            ErrorKind::BadCwd,
            "a command without its workdir",
        )?;
        ensure!(
            error.to_string().contains(&workdir),
            "the error does not name {workdir}: {error}"
        );
        place.write("file", "x").await?;
    }
    ensure_eq!(
        place.out("echo on").await?,
        "on\n",
        "output when the workdir is there"
    );
    place.destroy().await?;
    Ok(())
}

async fn closed_directories_do_not_break_destroy(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir -p x/y; echo z >x/y/z; chmod 000 x/y; chmod 000 x; chmod a-w .")
        .await?;
    place.destroy().await?;
    Ok(())
}

/// 400 levels of 20 bytes: longer than any path that can be given as one.
async fn deep_directories_do_not_break_destroy(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "i=0; while [ $i -lt 400 ]; do mkdir dddddddddddddddddddd && cd dddddddddddddddddddd || exit 1; i=$((i+1)); done";
    place.out(script).await?;
    ensure_eq!(place.list(".").await?.len(), 1, "entries of the workdir");
    place.destroy().await?;
    Ok(())
}
