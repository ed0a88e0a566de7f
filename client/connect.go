package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// Mode says how connections are protected. It must equal that of the servers.
type Mode = transport.Mode

// The modes.
const (
	// Secure encrypts everything with TLS 1.3.
	Secure = transport.Secure
	// CRC encrypts the requests, and sends the bytes of files with checksums but without
	// encryption. It is for networks without attackers, at a fraction of the cost.
	CRC = transport.CRC
)

// Options say how Open connects. Only Certs is required.
type Options struct {
	// Endpoint lists the metadata servers for an address that names none (moraine:///PATH), as
	// HOST or HOST:PORT, separated by commas.
	Endpoint string
	// Certs is the directory with ca.crt, NAME.crt and NAME.key. `moraine cert issue` makes
	// them.
	Certs string
	// Identity is NAME. Default: the one certificate in Certs.
	Identity string
	// Mode is Secure (the default) or CRC.
	Mode Mode
	// Log receives what the client logs. Default: nothing.
	Log *slog.Logger
	// Config has further settings. Open sets Metadata and Scope itself, from the address.
	Config Config
}

// OptionsFromEnv returns the options that MORAINE_ENDPOINT, MORAINE_CERTS, MORAINE_IDENTITY and
// MORAINE_MODE give, as the command line reads them. getenv is os.Getenv, or a test's replacement.
func OptionsFromEnv(getenv func(string) string) Options {
	return Options{Endpoint: getenv("MORAINE_ENDPOINT"), Certs: getenv("MORAINE_CERTS"),
		Identity: getenv("MORAINE_IDENTITY"), Mode: Mode(getenv("MORAINE_MODE"))}
}

// Open opens a session with the cluster at an address, over connections of its own. The address
// is moraine://HOST[:PORT],HOST[:PORT],.../PATH: any of its metadata servers is enough, three are
// better. All paths of the client start at PATH, which must exist; see Config.Scope. Without PATH
// they start at the top of what the certificate permits. Open reads no environment. The caller
// closes the Client, which also closes the connections. ctx bounds only the opening.
//
// It fails with InvalidArgument if the address or an option is wrong or missing, and with NotFound
// if a certificate or PATH is missing. It fails with Unauthenticated or PermissionDenied if the
// cluster does not accept the certificate. It fails with Unavailable or Timeout if no majority of
// the metadata servers answers.
func Open(ctx context.Context, at string, opts Options) (*Client, error) {
	const op = "client.Open"
	cfg, err := opts.config(at)
	if err != nil {
		return nil, &moraine.Error{Op: op, Ref: at, Kind: moraine.InvalidArgument, Err: err}
	}
	id, err := opts.identity()
	if err != nil {
		return nil, retry.Wrap(op, opts.Certs, err)
	}
	pool, err := transport.NewPool(transport.PoolConfig{Mode: cmp.Or(opts.Mode, Secure)}, transport.PoolDeps{Identity: id, Log: opts.Log})
	if err != nil {
		return nil, retry.Wrap(op, at, err)
	}
	c, err := Dial(ctx, cfg, Deps{Dialer: pool, Log: opts.Log})
	if err != nil {
		return nil, errors.Join(retry.Wrap(op, at, err), pool.Close())
	}
	c.connections = pool
	return c, nil
}

// config returns the settings of a client of the cluster at an address.
func (o *Options) config(at string) (Config, error) {
	cfg := o.Config
	if len(cfg.Metadata) > 0 || cfg.Scope != "" {
		return cfg, errors.New("name the metadata servers and the scope in the address, not in Options.Config")
	}
	switch o.Mode {
	case "", Secure, CRC:
	default:
		return cfg, fmt.Errorf("Options.Mode is %q: use client.Secure or client.CRC", o.Mode)
	}
	a, err := address.Parse(at)
	if err != nil {
		return cfg, err
	}
	if cfg.Metadata = address.SplitEndpoint(cmp.Or(a.Hosts, o.Endpoint)); len(cfg.Metadata) == 0 {
		return cfg, errors.New("no metadata server is named: write moraine://HOST1,HOST2,HOST3/PATH, or set Options.Endpoint (MORAINE_ENDPOINT)")
	}
	if a.Path != "/" {
		cfg.Scope = a.Path
	}
	return cfg, nil
}

// identity loads the certificate that the options name.
func (o *Options) identity() (*pki.Identity, error) {
	if o.Certs == "" {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument,
			Err: errors.New("no certificate is named: set Options.Certs (MORAINE_CERTS) to a directory that `moraine cert issue` made")}
	}
	name := o.Identity
	if name == "" {
		names, err := pki.Names(o.Certs)
		if err != nil {
			return nil, &moraine.Error{Kind: moraine.NotFound, Err: err}
		}
		if len(names) != 1 {
			return nil, &moraine.Error{Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("the directory has the certificates %q, not one: name it in Options.Identity (MORAINE_IDENTITY)", names)}
		}
		name = names[0]
	}
	return pki.LoadIdentity(pki.FilesIn(o.Certs, name))
}
