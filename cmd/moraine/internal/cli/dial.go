package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// Expires is when the certificate in this program's file expires; nil where there is no
// file.
func (s Security) Expires() func() time.Time {
	if s.Identity == nil {
		return nil
	}
	return s.Identity.NotAfter
}

// ClusterAt requests the cluster's identity from the metadata servers at hosts, or
// --endpoint.
func (env *Env) ClusterAt(ctx context.Context, hosts string) (moraine.UUID, error) {
	c, err := env.DialHosts(ctx, hosts, client.Config{})
	if err != nil {
		return moraine.UUID{}, err
	}
	defer c.Close()
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return moraine.UUID{}, err
	}
	id := resp.GetCluster().GetCluster()
	if len(id) != len(moraine.UUID{}) {
		return moraine.UUID{}, &moraine.Error{Kind: moraine.Unavailable, Err: errors.New("the cluster " +
			"has no identity yet")}
	}
	return moraine.UUID(id), nil
}

// Security is how this process authenticates: its mode and its certificate.
type Security struct {
	Mode     transport.Mode
	Identity *pki.Identity // nil in mode insecure
}

// Security reads --mode, --insecure, --certs and --identity.
func (env *Env) Security() (Security, error) {
	if env.Global.Insecure {
		return Security{Mode: transport.Insecure}, nil
	}
	s := Security{Mode: transport.Mode(env.Global.Mode)}
	switch s.Mode {
	case transport.Secure, transport.CRC:
	default:
		return s, UsageError("--mode %q: write secure or crc (or give --insecure)", env.Global.Mode)
	}
	if env.Global.Certs == "" {
		return s, UsageError("no certificate: name the directory with ca.crt and this program's " +
			"certificate by --certs (MORAINE_CERTS); `moraine cert --help` explains how to make one")
	}
	name := env.Global.Identity
	if name == "" {
		var err error
		if name, err = onlyIdentity(env.Global.Certs); err != nil {
			return s, err
		}
	}
	id, err := pki.LoadIdentity(pki.FilesIn(env.Global.Certs, name))
	if errors.Is(err, moraine.NotFound) {
		err = fmt.Errorf("--certs %s --identity %s: %s: `moraine cert --help` explains how to make "+
			"missing files", env.Global.Certs, name, Sentence(Innermost(err)))
	}
	if err != nil {
		return s, err
	}
	s.Identity = id
	return s, id.Check(time.Now())
}

// Require fails where the certificate is not of the server that starts.
func (s Security) Require(role transport.Role, node string) error {
	if s.Identity == nil {
		return nil
	}
	if c := s.Identity.Claims(); c.Role != role || c.Node != node {
		return UsageError("the certificate is of %s %s, not of %s %s: name another by --identity, or "+
			"make one with `moraine cert issue DIR %s %s`",
			c.Role, c.Node, role, node, role, node)
	}
	return nil
}

// onlyIdentity finds the one certificate in dir that is not the authority's.
func onlyIdentity(dir string) (string, error) {
	names, err := pki.Names(dir)
	if err != nil {
		return "", fmt.Errorf("--certs: %w; `moraine cert --help` explains how to make certificates", err)
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", UsageError("--certs %s: no NAME.crt there; make one with `moraine cert issue`", dir)
	default:
		return "", UsageError("--certs %s contains several certificates (%s): choose one with "+
			"--identity", filepath.Clean(dir), strings.Join(names, ", "))
	}
}

// Pool returns the connections of this process. In mode insecure the process names itself
// node with role; otherwise the certificate names it.
func (s Security) Pool(role transport.Role, node string, deps transport.PoolDeps) (*transport.Pool, error) {
	deps.Identity = s.Identity
	cfg := transport.PoolConfig{Mode: s.Mode, Release: Version}
	if s.Mode == transport.Insecure {
		cfg.Role, cfg.Node = role, node
	}
	return transport.NewPool(cfg, deps)
}

// Connection is a client that closes its pool too.
type Connection struct {
	*client.Client
	Pool *transport.Pool
}

// Close ends the session and the connections.
func (c *Connection) Close() error { return errors.Join(c.Client.Close(), c.Pool.Close()) }

// Dial connects to the cluster named by --endpoint.
func (env *Env) Dial(ctx context.Context) (*Connection, error) {
	return env.DialHosts(ctx, "", client.Config{})
}

// OnCluster returns the body of a command that connects to the cluster named by --endpoint.
func (env *Env) OnCluster(do func(ctx context.Context, c *Connection, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := env.Dial(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args)
	}
}

// Parent makes cmd a command that only has others below it, and shows its help.
func Parent(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(below...)
	return cmd
}

// dialTimeout bounds the wait for a cluster that does not answer: a person waits for most
// commands.
const dialTimeout = 15 * time.Second

// commandPatience bounds how long a command retries what may still succeed: longer than
// servers take to fail over, shorter than a person waits.
const commandPatience = 30 * time.Second

// DialHosts connects to the cluster whose metadata servers hosts names, or --endpoint names
// where hosts is empty.
func (env *Env) DialHosts(ctx context.Context, hosts string, cfg client.Config) (*Connection, error) {
	hosts = cmp.Or(hosts, env.Global.Endpoint)
	cfg.Patience = cmp.Or(cfg.Patience, commandPatience)
	cfg.CacheEntries = cmp.Or(cfg.CacheEntries, -1) // a command reads most names only once
	cfg.Metadata = address.SplitEndpoint(hosts)
	if len(cfg.Metadata) == 0 {
		return nil, UsageError("no cluster is named: name its metadata servers with --endpoint " +
			"(MORAINE_ENDPOINT), or write moraine://HOST/PATH")
	}
	sec, err := env.Security()
	if err != nil {
		return nil, err
	}
	log, err := env.CommandLog()
	if err != nil {
		return nil, err
	}
	return Connect(ctx, sec, cfg, transport.PoolDeps{Log: log}, client.Deps{Log: log})
}

// Connect opens a pool and a client over it.
func Connect(ctx context.Context, sec Security, cfg client.Config, poolDeps transport.PoolDeps, deps client.Deps) (*Connection, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	pool, err := sec.Pool(transport.RoleAdmin, fmt.Sprintf("%s-%d", host, os.Getpid()), poolDeps)
	if err != nil {
		return nil, err
	}
	deps.Dialer = pool
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.Dial(dialCtx, cfg, deps)
	if err != nil {
		_ = pool.Close()
		if ctx.Err() == nil && (errors.Is(err, moraine.Timeout) || errors.Is(err, context.DeadlineExceeded)) {
			err = &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf(
				"no majority of the metadata servers %s answered within %v: start those that are down, "+
					"or correct --endpoint; `moraine metadata status` shows the state of each (last "+
					"answer: %s)",
				addresses(cfg.Metadata), dialTimeout, Sentence(Innermost(err)))}
		}
		return nil, err
	}
	return &Connection{Client: c, Pool: pool}, nil
}

// Innermost returns the last *moraine.Error of err's chain, or err.
func Innermost(err error) error {
	for {
		var e *moraine.Error
		if !errors.As(errors.Unwrap(err), &e) {
			return err
		}
		err = e
	}
}

// addresses writes the metadata servers for an error.
func addresses(servers [][]string) string {
	var s []string
	for _, addrs := range servers {
		s = append(s, strings.Join(addrs, "/"))
	}
	return strings.Join(s, ",")
}

// SchemeUsage explains --scheme.
const SchemeUsage = "scheme of new files: 4+2, 8+3, x3 (default: by the number of hosts)"

// SchemeConfig is the settings of a client that writes with the scheme that --scheme names,
// or with the service's choice where that is empty.
func SchemeConfig(scheme string) (cfg client.Config, err error) {
	if scheme == "" {
		return cfg, nil
	}
	if cfg.Scheme, err = moraine.ParseScheme(scheme); err != nil {
		return cfg, UsageError("--scheme: %v", err)
	}
	return cfg, nil
}

// DefaultCache is how many names and attributes a mount or an endpoint caches.
const DefaultCache = 100_000

// CacheUsage explains --cache of a mount and of an S3 endpoint.
const CacheUsage = "names and attributes to cache, each under a cache lease, so that the client " +
	"answers from the cache what did not change; 0: none"

// CacheEntries converts the flag's number, where 0 is none, to a client's setting.
func CacheEntries(asked int) int {
	if asked <= 0 {
		return -1
	}
	return asked
}
