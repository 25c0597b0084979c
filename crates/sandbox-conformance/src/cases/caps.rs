//! CAPS-1 to CAPS-5: what a backend says of itself, and the negative twin of each ability.

use std::time::Duration;

use sandbox_core::{
    Backend, Bind, Cmd, ComposeSource, ContainerSpec, Error, ErrorKind, ImageRef, ImageSource,
    Lifetime, Limits, NetworkMode, PtySize, SandboxPath, SnapshotRef, Source, User,
};

use crate::case::{Done, Stop, cases, ensure, ensure_eq};
use crate::context::{Context, refused};
use crate::needs::{Ability, Need};

cases! { "caps":
    answer_is_the_same_for_the_backends_life ["CAPS-1"] [];
    absence_has_a_reason ["CAPS-2"] [];
    backend_has_a_name ["CAPS-3"] [];
    plainest_sandbox_can_be_made ["CAPS-4"] [];
    declared_workdir_specs_work ["CAPS-4"] [Need::Has(Ability::Workdir)];
    declared_staging_root_takes_files ["CAPS-2", "CAPS-4"] [Need::Has(Ability::StagingRoot)];
    declared_networks_work ["CAPS-4", "ISO-2"] [];
    undeclared_workdir_spec_is_refused ["CAPS-3"] [Need::Lacks(Ability::Workdir)];
    undeclared_image_spec_is_refused ["CAPS-3"] [Need::Lacks(Ability::Image)];
    undeclared_compose_spec_is_refused ["CAPS-3"] [Need::Lacks(Ability::Compose)];
    undeclared_shell_is_refused ["CAPS-3"] [Need::Lacks(Ability::Shell)];
    undeclared_stdin_is_refused ["CAPS-3", "EXEC-8"] [Need::Lacks(Ability::Stdin)];
    undeclared_pty_is_refused ["CAPS-3", "EXEC-16"] [Need::Lacks(Ability::Pty)];
    undeclared_dial_is_refused ["CAPS-3", "NET-1"] [Need::Lacks(Ability::Dial)];
    undeclared_users_are_refused ["CAPS-3", "EXEC-19"] [Need::Lacks(Ability::Users)];
    undeclared_binds_are_refused ["CAPS-3", "CAPS-5"] [Need::Lacks(Ability::Binds)];
    undeclared_detached_sandbox_is_refused ["CAPS-3", "LIFE-7"] [Need::Lacks(Ability::Detached)];
    undeclared_snapshot_is_refused ["CAPS-3", "SNAP-6"] [Need::Lacks(Ability::Snapshot)];
    undeclared_memory_limit_is_refused ["CAPS-5", "LIM-1"] [Need::Lacks(Ability::LimitMemory)];
    undeclared_cpu_limit_is_refused ["CAPS-5", "LIM-1"] [Need::Lacks(Ability::LimitCpu)];
    undeclared_pids_limit_is_refused ["CAPS-5", "LIM-1"] [Need::Lacks(Ability::LimitPids)];
    undeclared_disk_limit_is_refused ["CAPS-5", "LIM-1"] [Need::Lacks(Ability::LimitDisk)];
    undeclared_network_none_is_refused ["CAPS-5", "ISO-2"] [Need::Lacks(Ability::NetworkNone)];
    undeclared_network_host_is_refused ["CAPS-5"] [Need::Lacks(Ability::NetworkHost)];
    undeclared_network_bridge_is_refused ["CAPS-5"] [Need::Lacks(Ability::NetworkBridge)];
    undeclared_named_network_is_refused ["CAPS-5"] [];
    declared_shell_runs_scripts ["CAPS-4", "EXEC-1"] [Need::Has(Ability::Shell)];
    undeclared_signals_still_have_codes ["CAPS-3", "EXEC-6"] [Need::Lacks(Ability::ExactSignals)];
}

async fn answer_is_the_same_for_the_backends_life(cx: Context) -> Done {
    let first = cx.caps();
    ensure_eq!(cx.caps(), first, "asked again before any create");
    let place = cx.place().await?;
    ensure_eq!(cx.caps(), first, "asked with a live sandbox");
    place.out("true").await?;
    place.destroy().await?;
    ensure_eq!(cx.caps(), first, "asked after destroy");
    Ok(())
}

async fn absence_has_a_reason(cx: Context) -> Done {
    let caps = cx.caps();
    for ability in Ability::ALL {
        let support = ability.support(&caps);
        let told = support.is_yes()
            || support
                .reason()
                .is_some_and(|reason| !reason.trim().is_empty());
        ensure!(told, "{ability:?} is absent without a reason");
    }
    Ok(())
}

async fn backend_has_a_name(cx: Context) -> Done {
    ensure!(
        !cx.backend().name().is_empty(),
        "the backend's name is empty"
    );
    Ok(())
}

async fn plainest_sandbox_can_be_made(cx: Context) -> Done {
    let place = cx.place().await?;
    ensure_eq!(
        place.out("echo works").await?,
        "works\n",
        "output of the first command"
    );
    Ok(())
}

async fn declared_workdir_specs_work(cx: Context) -> Done {
    let mut spec = ContainerSpec::workdir(cx.name()?);
    spec.network = cx.spec()?.network;
    let place = cx.place_of(spec).await?;
    ensure_eq!(
        place.list(".").await?.len(),
        0,
        "entries of a fresh workdir"
    );
    Ok(())
}

async fn declared_staging_root_takes_files(cx: Context) -> Done {
    let place = cx.place().await?;
    let root = cx.caps().staging_root.unwrap_or_default();
    ensure!(
        root.starts_with('/'),
        "the staging root {root:?} is not absolute"
    );
    place.write(format!("{root}/staged"), "x").await?;
    ensure_eq!(
        place.out(&format!("cat '{root}/staged'")).await?,
        "x",
        "the staged file inside"
    );
    ensure!(
        !place.list(".").await?.contains_key(&b"staged"[..]),
        "a staged file is seen in the workdir"
    );
    Ok(())
}

async fn declared_networks_work(cx: Context) -> Done {
    let networks = cx.caps().networks;
    ensure!(
        !networks.is_empty(),
        "no network mode is declared, so that no sandbox can be made"
    );
    for network in networks {
        let mut spec = cx.spec()?;
        spec.network = network.clone();
        let place = cx.place_of(spec).await?;
        ensure_eq!(
            place.out("echo on").await?,
            "on\n",
            "output with the network {network}"
        );
        place.destroy().await?;
    }
    Ok(())
}

/// `create` must answer `Unsupported`, name the backend and the operation, and leave the name free and nothing listed.
async fn create_is_refused(cx: &Context, spec: ContainerSpec, what: &str) -> Done {
    let name = spec.name.clone();
    refused_by_name(cx, cx.backend().create(spec).await, what)?;
    ensure_eq!(
        cx.listed().await?.unwrap_or_default().len(),
        0,
        "sandboxes after a refused {what}"
    );
    let mut plain = cx.spec()?;
    plain.name = name;
    let place = cx.place_of(plain).await?;
    ensure_eq!(
        place.out("echo still").await?,
        "still\n",
        "a plain sandbox of the same name"
    );
    Ok(())
}

#[track_caller]
fn refused_by_name<T: std::fmt::Debug>(
    cx: &Context,
    result: sandbox_core::Result<T>,
    what: &str,
) -> Done {
    match refused(result, ErrorKind::Unsupported, what)? {
        Error::Unsupported {
            backend, operation, ..
        } if backend == cx.backend().name() && !operation.is_empty() => Ok(()),
        error => Err(Stop::fail(format!(
            "{what}: the error does not name the backend and the operation: {error}"
        ))),
    }
}

async fn undeclared_workdir_spec_is_refused(cx: Context) -> Done {
    create_is_refused(&cx, ContainerSpec::workdir(cx.name()?), "workdir spec").await
}

async fn undeclared_image_spec_is_refused(cx: Context) -> Done {
    let source = Source::Image(ImageSource::new(ImageRef::new("busybox")?));
    create_is_refused(&cx, ContainerSpec::new(cx.name()?, source), "image spec").await
}

async fn undeclared_compose_spec_is_refused(cx: Context) -> Done {
    let file = "services: {app: {image: busybox}}";
    let source = Source::Compose(ComposeSource::new(file, "app"));
    create_is_refused(&cx, ContainerSpec::new(cx.name()?, source), "compose spec").await
}

/// A command that is refused must not have run.
async fn command_is_refused(cx: &Context, cmd: Cmd, what: &str) -> Done {
    let place = cx.place().await?;
    refused_by_name(cx, place.start(cmd).await, what)?;
    ensure_eq!(
        place.list(".").await?.len(),
        0,
        "entries of the workdir after a refused {what}"
    );
    Ok(())
}

async fn undeclared_shell_is_refused(cx: Context) -> Done {
    command_is_refused(&cx, Cmd::shell("touch touched"), "shell string").await
}

async fn undeclared_stdin_is_refused(cx: Context) -> Done {
    command_is_refused(
        &cx,
        Cmd::argv(["touch", "touched"]).stdin_piped(),
        "piped input",
    )
    .await
}

async fn undeclared_pty_is_refused(cx: Context) -> Done {
    command_is_refused(
        &cx,
        Cmd::argv(["touch", "touched"]).pty(PtySize::default()),
        "pty",
    )
    .await
}

async fn undeclared_users_are_refused(cx: Context) -> Done {
    let user = User::Ids {
        uid: 4242,
        gid: None,
    };
    let cmd = Cmd::argv(["touch", "touched"]).user(user.clone());
    command_is_refused(&cx, cmd, "command of another user").await?;
    let mut spec = cx.spec()?;
    spec.user = Some(user);
    let name = spec.name.clone();
    refused_by_name(
        &cx,
        cx.backend().create(spec).await,
        "sandbox of another user",
    )?;
    let mut plain = cx.spec()?;
    plain.name = name;
    cx.place_of(plain).await?;
    Ok(())
}

async fn undeclared_dial_is_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    refused_by_name(&cx, cx.backend().dial(&place.handle, 80).await, "dial")
}

async fn undeclared_binds_are_refused(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.binds
        .push(Bind::read_only(cx.host_dir()?, SandboxPath::new("/data")?));
    create_is_refused(&cx, spec, "bind").await
}

async fn undeclared_detached_sandbox_is_refused(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.lifetime = Lifetime::Detached {
        ttl: Duration::from_secs(60),
    };
    create_is_refused(&cx, spec, "detached sandbox").await
}

async fn undeclared_snapshot_is_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    refused_by_name(&cx, cx.backend().snapshot(&place.handle).await, "snapshot")?;
    let reference = SnapshotRef::new(format!("sbx1:sha256:{}", "0".repeat(64)))?;
    refused_by_name(
        &cx,
        cx.backend().restore(&reference, cx.name()?).await,
        "restore",
    )?;
    ensure_eq!(
        place.read("file").await?,
        "x",
        "the file after a refused snapshot"
    );
    ensure_eq!(
        place.out("echo on").await?,
        "on\n",
        "output after a refused snapshot"
    );
    Ok(())
}

async fn limit_is_refused(cx: Context, limits: Limits) -> Done {
    let mut spec = cx.spec()?;
    spec.limits = limits;
    create_is_refused(&cx, spec, "limit").await
}

async fn undeclared_memory_limit_is_refused(cx: Context) -> Done {
    limit_is_refused(
        cx,
        Limits {
            memory: Some(64 << 20),
            ..Limits::default()
        },
    )
    .await
}

async fn undeclared_cpu_limit_is_refused(cx: Context) -> Done {
    limit_is_refused(
        cx,
        Limits {
            cpus: Some(0.5),
            ..Limits::default()
        },
    )
    .await
}

async fn undeclared_pids_limit_is_refused(cx: Context) -> Done {
    limit_is_refused(
        cx,
        Limits {
            pids: Some(64),
            ..Limits::default()
        },
    )
    .await
}

async fn undeclared_disk_limit_is_refused(cx: Context) -> Done {
    limit_is_refused(
        cx,
        Limits {
            disk: Some(64 << 20),
            ..Limits::default()
        },
    )
    .await
}

async fn network_is_refused(cx: Context, network: NetworkMode) -> Done {
    let mut spec = cx.spec()?;
    spec.network = network;
    create_is_refused(&cx, spec, "network").await
}

async fn undeclared_network_none_is_refused(cx: Context) -> Done {
    network_is_refused(cx, NetworkMode::None).await
}

async fn undeclared_network_host_is_refused(cx: Context) -> Done {
    network_is_refused(cx, NetworkMode::Host).await
}

async fn undeclared_network_bridge_is_refused(cx: Context) -> Done {
    network_is_refused(cx, NetworkMode::Bridge).await
}

async fn undeclared_named_network_is_refused(cx: Context) -> Done {
    network_is_refused(
        cx,
        NetworkMode::Named("no-such-network-of-any-backend".into()),
    )
    .await
}

async fn declared_shell_runs_scripts(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.run(Cmd::shell("echo \"a  b\" | cat")).await?;
    ensure_eq!(&result.stdout[..], b"a  b\n", "output of a pipeline");
    Ok(())
}

async fn undeclared_signals_still_have_codes(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("kill -9 $$").await?;
    ensure_eq!(result.code(), Some(137), "code after SIGKILL");
    Ok(())
}
