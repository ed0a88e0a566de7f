package main

import (
	"net"
	"path"
	"strconv"
	"strings"

	"github.com/morainefs/moraine/client"
)

// Default ports.
const (
	defaultMetadataPort    = client.DefaultMetadataPort
	defaultChunkserverPort = "7410"
)

// location is one argument of a file command: a path in a cluster, or a local
// one.
type location struct {
	// remote is set for moraine://.
	remote bool
	// hosts are those the URL names; empty means --endpoint.
	hosts string
	// path is absolute for a remote location, as given for a local one.
	path string
	// dir is set where the argument ended in a slash: the target must be a directory.
	dir bool
}

const remotePrefix = "moraine://"

// parseLocation reads moraine://HOSTS/PATH, moraine:///PATH or a local path.
func parseLocation(arg string) (location, error) {
	rest, ok := strings.CutPrefix(arg, remotePrefix)
	if !ok {
		if strings.HasPrefix(arg, "s3://") {
			return location{}, usageError("%s: moraine does not support s3:// addresses yet; copy "+
				"through a local path", arg)
		}
		if arg == "" {
			return location{}, usageError("the path is empty")
		}
		if p, ok := strings.CutPrefix(arg, "moraine:"); ok {
			return location{}, usageError("%s: write a path in the cluster as moraine:///%s, or "+
				"moraine://HOST/PATH", arg, strings.TrimLeft(p, "/"))
		}
		return location{path: arg, dir: strings.HasSuffix(arg, "/")}, nil
	}
	hosts, p, _ := strings.Cut(rest, "/")
	return location{remote: true, hosts: hosts, path: path.Clean("/" + p), dir: p == "" || strings.HasSuffix(p, "/")}, nil
}

// parseRemote is parseLocation for commands that take cluster paths only.
func parseRemote(arg string) (location, error) {
	l, err := parseLocation(arg)
	if err == nil && !l.remote {
		err = usageError("%s is a local path; write a path in the cluster as moraine:///%s", arg, strings.TrimPrefix(arg, "/"))
	}
	return l, err
}

func (l location) String() string {
	if !l.remote {
		return l.path
	}
	return remotePrefix + l.hosts + l.path
}

// splitEndpoint reads HOST[:PORT],... into addresses, one server each.
func splitEndpoint(s string) [][]string {
	return client.SplitEndpoint(strings.TrimPrefix(s, remotePrefix))
}

// serverAddress reads the address at which other servers reach a metadata server. It
// requires a port: a wrong port would show only much later.
func serverAddress(s string) (string, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok && path != "" {
		return s, nil
	}
	host, port, err := net.SplitHostPort(s)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t/,=@[]") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return "", usageError("%q is not the address of a server: write HOST:PORT, such as host4:%s", s, defaultMetadataPort)
	}
	return s, nil
}

// withPort adds a port to an address that has none. unix:PATH is left alone.
func withPort(addr, port string) string {
	if strings.HasPrefix(addr, "unix:") {
		return addr
	}
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), port)
}
