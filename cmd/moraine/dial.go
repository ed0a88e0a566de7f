package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// security is how this process authenticates: its mode and its certificate.
type security struct {
	mode     transport.Mode
	identity *pki.Identity // nil in mode insecure
}

// security reads --mode, --insecure, --certs and --identity.
func (a *app) security() (security, error) {
	if a.global.insecure {
		return security{mode: transport.Insecure}, nil
	}
	s := security{mode: transport.Mode(a.global.mode)}
	switch s.mode {
	case transport.Secure, transport.CRC:
	default:
		return s, usageError("--mode %q: write secure or crc (or give --insecure)", a.global.mode)
	}
	if a.global.certs == "" {
		return s, usageError("no certificate: name the directory with ca.crt and this program's " +
			"certificate by --certs (MORAINE_CERTS); `moraine cert --help` explains how to make one")
	}
	name := a.global.identity
	if name == "" {
		var err error
		if name, err = onlyIdentity(a.global.certs); err != nil {
			return s, err
		}
	}
	id, err := pki.LoadIdentity(pki.FilesIn(a.global.certs, name))
	if errors.Is(err, moraine.NotFound) {
		err = fmt.Errorf("--certs %s --identity %s: %s: `moraine cert --help` explains how to make "+
			"missing files", a.global.certs, name, sentence(innermost(err)))
	}
	if err != nil {
		return s, err
	}
	s.identity = id
	return s, id.Check(time.Now())
}

// require fails where the certificate is not of the server that starts.
func (s security) require(role transport.Role, node string) error {
	if s.identity == nil {
		return nil
	}
	if c := s.identity.Claims(); c.Role != role || c.Node != node {
		return usageError("the certificate is of %s %s, not of %s %s: name another by --identity, or "+
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
		return "", usageError("--certs %s: no NAME.crt there; make one with `moraine cert issue`", dir)
	default:
		return "", usageError("--certs %s contains several certificates (%s): choose one with "+
			"--identity", filepath.Clean(dir), strings.Join(names, ", "))
	}
}

// pool returns the connections of this process. In mode insecure the process names itself
// node with role; otherwise the certificate names it.
func (s security) pool(role transport.Role, node string, deps transport.PoolDeps) (*transport.Pool, error) {
	deps.Identity = s.identity
	cfg := transport.PoolConfig{Mode: s.mode, Release: version}
	if s.mode == transport.Insecure {
		cfg.Role, cfg.Node = role, node
	}
	return transport.NewPool(cfg, deps)
}

// connection is a client that closes its pool too.
type connection struct {
	*client.Client
	pool *transport.Pool
}

// Close ends the session and the connections.
func (c *connection) Close() error { return errors.Join(c.Client.Close(), c.pool.Close()) }

// dial connects to the cluster named by --endpoint.
func (a *app) dial(ctx context.Context) (*connection, error) {
	return a.dialHosts(ctx, "", client.Config{})
}

// dialTimeout bounds the wait for a cluster that does not answer: a person waits for most
// commands.
const dialTimeout = 15 * time.Second

// commandPatience bounds how long a command retries what may still succeed: longer than
// servers take to fail over, shorter than a person waits.
const commandPatience = 30 * time.Second

// dialHosts connects to the cluster whose metadata servers hosts names, or --endpoint names
// where hosts is empty.
func (a *app) dialHosts(ctx context.Context, hosts string, cfg client.Config) (*connection, error) {
	if hosts == "" {
		hosts = a.global.endpoint
	}
	if cfg.Patience == 0 {
		cfg.Patience = commandPatience
	}
	if cfg.CacheEntries == 0 {
		cfg.CacheEntries = -1 // a command reads most names only once
	}
	cfg.Metadata = splitEndpoint(hosts)
	if len(cfg.Metadata) == 0 {
		return nil, usageError("no cluster is named: name its metadata servers with --endpoint " +
			"(MORAINE_ENDPOINT), or write moraine://HOST/PATH")
	}
	sec, err := a.security()
	if err != nil {
		return nil, err
	}
	log, err := a.commandLog()
	if err != nil {
		return nil, err
	}
	return connect(ctx, sec, cfg, transport.PoolDeps{Log: log}, client.Deps{Log: log})
}

// connect opens a pool and a client over it.
func connect(ctx context.Context, sec security, cfg client.Config, poolDeps transport.PoolDeps, deps client.Deps) (*connection, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	pool, err := sec.pool(transport.RoleAdmin, fmt.Sprintf("%s-%d", host, os.Getpid()), poolDeps)
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
				addresses(cfg.Metadata), dialTimeout, sentence(innermost(err)))}
		}
		return nil, err
	}
	return &connection{Client: c, pool: pool}, nil
}

// innermost returns the last *moraine.Error of err's chain, or err.
func innermost(err error) error {
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

// schemeUsage explains --scheme.
const schemeUsage = "scheme of new files: 4+2, 8+3, x3 (default: by the number of hosts)"

// schemeConfig is the settings of a client that writes with the scheme that --scheme names,
// or with the service's choice where that is empty.
func schemeConfig(scheme string) (cfg client.Config, err error) {
	if scheme == "" {
		return cfg, nil
	}
	if cfg.Scheme, err = moraine.ParseScheme(scheme); err != nil {
		return cfg, usageError("--scheme: %v", err)
	}
	return cfg, nil
}

// defaultCache is how many names and attributes a mount or an endpoint caches.
const defaultCache = 100_000

const cacheUsage = "names and attributes to cache, each under a cache lease, so that the client " +
	"answers from the cache what did not change; 0: none"

// cacheEntries converts the flag's number, where 0 is none, to a client's setting.
func cacheEntries(asked int) int {
	if asked <= 0 {
		return -1
	}
	return asked
}
