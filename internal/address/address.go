// Package address reads the addresses of clusters and of the files in them. The library and the
// command line share it.
//
// One path through it: Parse takes moraine://HOSTS/PATH apart -> SplitEndpoint makes HOSTS the
// addresses of servers.
package address

import (
	"fmt"
	"net"
	"path"
	"strings"
)

// DefaultMetadataPort is the port of a metadata server whose address names none.
const DefaultMetadataPort = "7400"

// Prefix begins the address of a file in a cluster.
const Prefix = "moraine://"

// Address is a place in a cluster, moraine://HOSTS/PATH.
type Address struct {
	// Hosts are the metadata servers as the address names them; see SplitEndpoint. Empty: it
	// names none.
	Hosts string
	// Path is absolute and clean.
	Path string
	// Dir is true if the address ends in a slash: it means a directory.
	Dir bool
}

// Parse reads moraine://HOSTS/PATH or moraine:///PATH.
func Parse(s string) (Address, error) {
	rest, ok := strings.CutPrefix(s, Prefix)
	if !ok {
		if p, ok := strings.CutPrefix(s, "moraine:"); ok {
			p = strings.TrimLeft(p, "/")
			return Address{}, fmt.Errorf("%s: write a path in the cluster as moraine:///%s, or moraine://HOST/%s", s, p, p)
		}
		return Address{}, fmt.Errorf("%q is no address in a cluster: write moraine://HOST/PATH", s)
	}
	hosts, p, _ := strings.Cut(rest, "/")
	return Address{Hosts: hosts, Path: path.Clean("/" + p), Dir: p == "" || strings.HasSuffix(p, "/")}, nil
}

// CleanPath returns the path of a file in a cluster to which the caller is connected, absolute and clean. It may be
// written as an address without hosts, moraine:///PATH. An address with hosts may mean another cluster: that is
// an error.
func CleanPath(s string) (string, error) {
	if !strings.HasPrefix(s, "moraine:") {
		return path.Clean("/" + s), nil
	}
	a, err := Parse(s)
	if err == nil && a.Hosts != "" {
		err = fmt.Errorf("%s names hosts, but the connection decides which cluster it is: write moraine://%s", s, a.Path)
	}
	return a.Path, err
}

// SplitEndpoint returns the servers of an endpoint, each as its addresses: HOST or HOST:PORT,
// separated by commas. A host without a port gets DefaultMetadataPort. The endpoint may also be an
// address without a path, moraine://HOST.
func SplitEndpoint(endpoint string) (servers [][]string) {
	for _, host := range strings.Split(strings.TrimPrefix(endpoint, Prefix), ",") {
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
