package cli

import (
	"net"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/morainefs/moraine/internal/address"
)

// Default ports.
const (
	DefaultMetadataPort    = address.DefaultMetadataPort
	DefaultChunkserverPort = "7410"
)

// Location is one argument of a file command: a path in a cluster, or a local
// one.
type Location struct {
	// Remote is set for moraine://.
	Remote bool
	// Hosts are those the URL names; empty means --endpoint.
	Hosts string
	// Path is absolute for a remote location, as given for a local one.
	Path string
	// Dir is set where the argument ended in a slash: the target must be a directory.
	Dir bool
}

// RemotePrefix begins the address of a file in a cluster.
const RemotePrefix = address.Prefix

// ParseLocation reads moraine://HOSTS/PATH, moraine:///PATH or a local path.
func ParseLocation(arg string) (Location, error) {
	switch {
	case strings.HasPrefix(arg, "moraine:"):
		a, err := address.Parse(arg)
		if err != nil {
			return Location{}, UsageError("%v", err)
		}
		return Location{Remote: true, Hosts: a.Hosts, Path: a.Path, Dir: a.Dir}, nil
	case strings.HasPrefix(arg, "s3://"):
		return Location{}, UsageError("%s: moraine does not support s3:// addresses yet; copy "+
			"through a local path", arg)
	case arg == "":
		return Location{}, UsageError("the path is empty")
	}
	return Location{Path: arg, Dir: strings.HasSuffix(arg, "/")}, nil
}

// ParseRemote is ParseLocation for commands that take cluster paths only.
func ParseRemote(arg string) (Location, error) {
	l, err := ParseLocation(arg)
	if err == nil && !l.Remote {
		err = UsageError("%s is a local path; write a path in the cluster as moraine:///%s", arg, strings.TrimPrefix(arg, "/"))
	}
	return l, err
}

// String writes the location as a person would.
func (l Location) String() string {
	if !l.Remote {
		return l.Path
	}
	return RemotePrefix + l.Hosts + l.Path
}

// ServerAddress reads the address at which other servers reach a metadata server. It
// requires a port: a wrong port would show only much later.
func ServerAddress(s string) (string, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok && path != "" {
		return s, nil
	}
	host, port, err := net.SplitHostPort(s)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t/,=@[]") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return "", UsageError("%q is not the address of a server: write HOST:PORT, such as host4:%s", s, DefaultMetadataPort)
	}
	return s, nil
}

// Join returns the location of name below l.
func (l Location) Join(name string) Location {
	l.Dir = false
	if l.Remote {
		l.Path = path.Join(l.Path, name)
	} else {
		l.Path = filepath.Join(l.Path, name)
	}
	return l
}
