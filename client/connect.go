package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// DefaultMetadataPort is the port of a metadata server whose address names none.
const DefaultMetadataPort = "7400"

// Cluster says which cluster a program connects to, and with which identity.
type Cluster struct {
	// Endpoint lists the addresses of the metadata servers, HOST or HOST:PORT, separated by
	// commas. One server that answers is enough.
	Endpoint string
	// Certs is the directory with ca.crt, NAME.crt and NAME.key. `moraine cert issue` makes
	// them.
	Certs string
	// Identity is NAME. Default: the one certificate in Certs.
	Identity string
	// Mode is transport.Secure (the default) or transport.CRC, and must equal that of the
	// servers.
	Mode transport.Mode
}

// ClusterFromEnv returns the cluster that MORAINE_ENDPOINT, MORAINE_CERTS, MORAINE_IDENTITY and
// MORAINE_MODE name, as the command line does. getenv is os.Getenv, or a test's replacement.
func ClusterFromEnv(getenv func(string) string) Cluster {
	return Cluster{Endpoint: getenv("MORAINE_ENDPOINT"), Certs: getenv("MORAINE_CERTS"),
		Identity: getenv("MORAINE_IDENTITY"), Mode: transport.Mode(getenv("MORAINE_MODE"))}
}

// Connect opens a session with a cluster, over connections of its own. It takes cfg.Metadata
// from at.Endpoint; the zero value of each other field means its default. The caller closes the
// Client, which also closes the connections. ctx bounds only the opening.
//
// It fails with InvalidArgument if at is incomplete, and with NotFound if a
// certificate is missing. It fails with Unauthenticated or PermissionDenied if
// the cluster does not accept the certificate. It fails with Unavailable or
// Timeout if no majority of the metadata servers answers.
func Connect(ctx context.Context, at Cluster, cfg Config) (*Client, error) {
	const op = "client.Connect"
	cfg.Metadata = SplitEndpoint(at.Endpoint)
	if len(cfg.Metadata) == 0 {
		return nil, &moraine.Error{Op: op, Kind: moraine.InvalidArgument, Err: errors.New("name the metadata servers in Cluster.Endpoint, as host1:" + DefaultMetadataPort)}
	}
	at.Mode = cmp.Or(at.Mode, transport.Secure)
	name := at.Identity
	if name == "" {
		names, err := pki.Names(at.Certs)
		if err != nil {
			return nil, &moraine.Error{Op: op, Ref: at.Certs, Kind: moraine.NotFound, Err: err}
		}
		if len(names) != 1 {
			return nil, &moraine.Error{Op: op, Ref: at.Certs, Kind: moraine.InvalidArgument,
				Err: fmt.Errorf("the directory holds the certificates %q, not one: name it in Cluster.Identity", names)}
		}
		name = names[0]
	}
	id, err := pki.LoadIdentity(pki.FilesIn(at.Certs, name))
	if err != nil {
		return nil, retry.Wrap(op, at.Certs, err)
	}
	pool, err := transport.NewPool(transport.PoolConfig{Mode: at.Mode}, transport.PoolDeps{Identity: id})
	if err != nil {
		return nil, retry.Wrap(op, "", err)
	}
	c, err := Dial(ctx, cfg, Deps{Dialer: pool})
	if err != nil {
		return nil, errors.Join(retry.Wrap(op, at.Endpoint, err), pool.Close())
	}
	c.connections = pool
	return c, nil
}

// SplitEndpoint returns the servers of an endpoint, each as its addresses: HOST or HOST:PORT,
// separated by commas. A host without a port gets DefaultMetadataPort.
func SplitEndpoint(endpoint string) (servers [][]string) {
	for _, host := range strings.Split(endpoint, ",") {
		host = strings.TrimRight(strings.TrimSpace(host), "/")
		if host == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(host); err != nil && !strings.HasPrefix(host, "unix:") {
			host = net.JoinHostPort(strings.Trim(host, "[]"), DefaultMetadataPort)
		}
		servers = append(servers, []string{host})
	}
	return servers
}
