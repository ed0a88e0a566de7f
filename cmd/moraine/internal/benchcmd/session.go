package benchcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/mountcmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// onCluster returns the environment of a command on a cluster that this process started.
func onCluster(env *cli.Env, c *devcluster.Cluster, mode string) *cli.Env {
	return &cli.Env{Out: env.Out, Err: env.Err, Global: cli.GlobalFlags{Endpoint: c.Endpoint(), Certs: c.Certs(), Identity: "admin", Mode: mode, LogLevel: "error"}}
}

// benchOn measures the cluster that the flags name.
func benchOn(env *cli.Env, e *bench.Env, profile string) {
	e.Agent = append([]string{e.Worker[0], "agent", "--mode", env.Global.Mode}, connectionFlags(env)...)
	e.Worker = append(e.Worker, connectionFlags(env)...)
	e.Open = func(ctx context.Context) (bench.Target, error) { return benchTarget(ctx, env) }
	e.Connect, e.ConnectCached = benchSession(env, 0), benchSession(env, cli.DefaultCache)
	e.Mount = benchMount(env, e.Dir, profile)
}

// benchSession returns a function that opens a session with its own connections and a cache
// of the given number of names; 0 is none.
func benchSession(env *cli.Env, cache int) func(context.Context) (*client.Client, func() error, error) {
	return func(ctx context.Context) (*client.Client, func() error, error) {
		c, err := env.DialHosts(ctx, "", client.Config{MemoryBytes: 512 << 20, CacheEntries: cache})
		if err != nil {
			return nil, nil, err
		}
		return c.Client, c.Close, nil
	}
}

// benchStores returns the S3 endpoint and the bucket of a cluster of our own, where it has
// them.
func benchStores(e *bench.Env, c *devcluster.Cluster) error {
	for _, n := range c.Nodes(devcluster.S3) {
		key, err := serve.ReadCredentials(n.CredentialsFile())
		if err != nil {
			return err
		}
		e.S3 = &bench.S3Server{URL: "http://" + n.Address, AccessKey: key.Access, SecretKey: key.Secret}
	}
	for _, n := range c.Nodes(devcluster.ObjectServer) {
		keys, err := object.LoadKeys(n.KeysFile())
		if err != nil {
			return err
		}
		e.Bucket = &bench.Bucket{Name: devcluster.LocalBucket, S3Server: bench.S3Server{URL: "http://" + n.Address, AccessKey: keys.Access, SecretKey: keys.Secret}}
	}
	return nil
}

// connectionFlags are the flags by which a child process reaches the cluster that the flags
// of this process name.
func connectionFlags(env *cli.Env) []string {
	g := &env.Global
	flags := []string{"--endpoint", g.Endpoint, "--log-level", "error"}
	if g.Insecure {
		return append(flags, "--insecure")
	}
	flags = append(flags, "--certs", g.Certs)
	if g.Identity != "" {
		flags = append(flags, "--identity", g.Identity)
	}
	return flags
}

// benchTarget opens a session as a target.
func benchTarget(ctx context.Context, env *cli.Env) (bench.Target, error) {
	c, err := env.DialHosts(ctx, "", client.Config{MemoryBytes: 512 << 20})
	if err != nil {
		return nil, err
	}
	return bench.ClusterTarget(c.Client, c.Close), nil
}

// benchMount mounts the cluster below dir. A background process serves the mount, and
// writes a CPU profile where the flags name a file.
func benchMount(env *cli.Env, dir, profile string) func(context.Context) (bench.Mounted, error) {
	if profile != "" {
		profile += ".mount"
	}
	return func(ctx context.Context) (bench.Mounted, error) {
		m, err := startMount(ctx, env, dir, profile)
		return bench.Mounted{Dir: m.dir, Pids: func() []int { return withChildren(m.pid) }, End: func() error { return m.end(ctx) }}, err
	}
}

// benchMounted is a mount of a benchmark, served by a process of its own.
type benchMounted struct {
	env *cli.Env
	dir string
	pid int
}

// startMount mounts the cluster on DIR/mount. The process writes a CPU profile unless the name of
// its file is empty.
func startMount(ctx context.Context, env *cli.Env, dir, profile string, args ...string) (benchMounted, error) {
	at, err := filepath.Abs(filepath.Join(dir, "mount"))
	if err != nil {
		return benchMounted{}, err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return benchMounted{}, err
	}
	quiet := *env
	var said bytes.Buffer
	quiet.Out, quiet.Global.JSON = &said, true
	quiet.Args = append([]string{"mount", cli.RemotePrefix + "/", at, "--mode", env.Global.Mode}, connectionFlags(env)...)
	quiet.Args = append(quiet.Args, args...)
	if profile != "" {
		quiet.Args = append(quiet.Args, "--cpuprofile", profile)
	}
	m := benchMounted{env: env, dir: at}
	if err := mountcmd.MountInBackground(ctx, &quiet, mountcmd.MountOptions{LogFile: filepath.Join(dir, "mount.log")}, cli.Location{Remote: true, Path: "/"}, at); err != nil {
		return m, err
	}
	var mounted struct {
		Pid int `json:"pid"`
	}
	err = json.Unmarshal(said.Bytes(), &mounted)
	m.pid = mounted.Pid
	return m, err
}

// end unmounts, and returns when the process has ended.
func (m benchMounted) end(ctx context.Context) error {
	return mountcmd.Unmount(context.WithoutCancel(ctx), m.env, m.dir, mountcmd.UmountOptions{})
}
