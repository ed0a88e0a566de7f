// Package devcluster runs a whole cluster on this machine as real processes of
// the moraine binary. Each server is one process, with its own directory and
// loopback ports. `moraine dev-cluster`, the demo, the benchmarks and the tests
// that kill things stand on it.
//
// It knows command lines and processes only; it never looks into a server.
//
// One path through it: Start makes the directories, the certificates and the
// command lines (prepare). It starts each Node, and waits until its health
// check answers (Ready). A test ends one with Node.Kill and starts it again
// with Node.Start. Close ends all.
package devcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/morainefs/moraine/internal/netns"
	"github.com/morainefs/moraine/internal/vfs"
	"golang.org/x/sync/errgroup"
)

// Config describes a cluster. Zero values mean defaults.
type Config struct {
	// Binary is the moraine executable (default: this process's own).
	Binary string
	// Dir holds everything: certificates, logs, data. It is made if missing. If it
	// already holds a cluster, that is started again.
	Dir string
	// CertsDir is the directory of the certificates (default: one in Dir). Start makes
	// the certificates that are missing.
	CertsDir string
	// Metadata servers (default 3), Chunkservers (default 6, negative for none), each
	// a host of its own, with Devices devices (default 1).
	Metadata, Chunkservers, Devices int
	// ObjectServer runs a local bucket, which every chunkserver uses.
	ObjectServer bool
	// S3 runs an S3 endpoint at S3Listen (default: a free loopback port), with a
	// root key of its own (Node.CredentialsFile).
	S3       bool
	S3Listen string
	// Mode is secure or crc (default crc).
	Mode string
	// Seed, if set, makes the data directory of a metadata server without one: the
	// group then starts from that, and not empty. peers are all metadata servers,
	// ID=HOST:PORT.
	Seed func(name, data string, peers []string) error
	// MetadataArgs and ChunkserverArgs are appended to the command lines.
	MetadataArgs, ChunkserverArgs []string
	// LogStall is --log-stall of the metadata servers: how long an append to its
	// log may take before a server steps down. Default 15 s, since all servers
	// share one disk here, and another server's burst is no broken disk. Negative:
	// the default of servers with disks of their own.
	LogStall time.Duration
	// OwnHosts gives each metadata server a host of its own, so that it can Vanish. The
	// hosts are on a network that this process is joined to (package netns). That needs
	// root, otherwise Start fails with netns.ErrCannot. It also needs a directory that
	// holds no cluster yet.
	OwnHosts bool
	// Net is a network of the caller, if it has one: each server whose name is a
	// host of it runs there. The caller closes it, after the cluster.
	Net *netns.Net
	// Listen returns where a server listens if that is not its address: then a
	// proxy at the address accepts the connections and forwards them. The local
	// bucket and the S3 endpoint can only listen at HOST:PORT.
	Listen func(name, address string) string
	// Env is added to each server's environment.
	Env []string
}

func (c *Config) setDefaults() error {
	if c.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		c.Binary = self
	}
	setDefault(&c.Metadata, 3)
	setDefault(&c.Chunkservers, 6)
	c.Chunkservers = max(0, c.Chunkservers)
	setDefault(&c.Devices, 1)
	c.LogStall = cmp.Or(c.LogStall, sharedDiskStall)
	c.Mode = cmp.Or(c.Mode, "crc")
	if c.Dir == "" {
		return errors.New("devcluster: no directory for the cluster")
	}
	if c.CertsDir == "" {
		c.CertsDir = filepath.Join(c.Dir, "certs")
	}
	return nil
}

func setDefault(n *int, v int) {
	if *n == 0 {
		*n = v
	}
}

// sharedDiskStall is the default of Config.LogStall.
const sharedDiskStall = 15 * time.Second

// Cluster is a cluster of running (or killed) processes.
type Cluster struct {
	cfg   Config
	nodes []*Node
	net   *netns.Net // of servers that have hosts of their own; nil: none has
	lock  io.Closer  // of the directory: one supervisor at a time
}

// Start starts every process and waits until all are ready. On error no process is
// left running.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, net: cfg.Net}
	if err := c.lockDir(); err != nil {
		return nil, err
	}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.startAll(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// lockDir locks the directory until this process ends, so that no second supervisor uses it.
func (c *Cluster) lockDir() error {
	if err := os.MkdirAll(c.cfg.Dir, 0o755); err != nil {
		return err
	}
	lock, err := vfs.OS{}.Lock(filepath.Join(c.cfg.Dir, "lock"))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("cluster in %s is already running: use that one, or name another directory", c.cfg.Dir)
	}
	c.lock = lock
	return err
}

func (c *Cluster) startAll(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var g errgroup.Group
	for _, n := range c.nodes {
		g.Go(func() error { return n.Ready(ctx) })
	}
	return g.Wait()
}

// prepare makes the directories, the certificates and the command lines.
func (c *Cluster) prepare() error {
	ports, err := c.ports()
	if err != nil {
		return err
	}
	if err := MakeCertificates(c.Certs(), c.cfg.Metadata, c.cfg.Chunkservers); err != nil {
		return err
	}
	var peers, endpoints []string
	for i := range c.cfg.Metadata {
		addr := ports[2*i]
		peers = append(peers, fmt.Sprintf("m%d=%s", i+1, addr))
		endpoints = append(endpoints, addr)
	}
	tier, err := c.prepareObjectServer()
	if err != nil {
		return err
	}
	for i := range c.cfg.Metadata {
		name := fmt.Sprintf("m%d", i+1)
		args := c.metadataArgs(name, strings.Join(peers, ","))
		first, err := c.begin(name, peers)
		if err != nil {
			return err
		}
		args = append(args, first...)
		if err := c.add(Metadata, name, ports[2*i], ports[2*i+1], args...); err != nil {
			return err
		}
	}
	rest := ports[2*c.cfg.Metadata:]
	for i := range c.cfg.Chunkservers {
		name := fmt.Sprintf("n%d", i+1)
		// All hosts share this machine's memory; a later argument can set more.
		args := append([]string{"--endpoint", strings.Join(endpoints, ","), "--memory", "256MiB"}, tier...)
		devices, err := c.formatDevices(name)
		if err != nil {
			return err
		}
		for _, dir := range devices {
			args = append(args, "--device", dir)
		}
		if err := c.add(Chunkserver, name, rest[2*i], rest[2*i+1], append(args, c.cfg.ChunkserverArgs...)...); err != nil {
			return err
		}
	}
	return c.prepareS3()
}

// metadataArgs are the arguments of a metadata server at each start.
func (c *Cluster) metadataArgs(name, peers string) []string {
	// Automatic backups would fill the small disks of tests; MetadataArgs may
	// request them.
	args := []string{"--data", filepath.Join(c.cfg.Dir, name, "data"), "--peers", peers, "--backup-interval", "-1s"}
	if c.cfg.LogStall > 0 {
		args = append(args, "--log-stall", c.cfg.LogStall.String())
	}
	return append(args, c.cfg.MetadataArgs...)
}

// begin prepares the data of a metadata server without any, and returns the
// arguments for its first start.
func (c *Cluster) begin(name string, peers []string) ([]string, error) {
	data := filepath.Join(c.cfg.Dir, name, "data")
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if c.cfg.Seed == nil {
		return []string{"--bootstrap"}, nil
	}
	if err := os.MkdirAll(filepath.Dir(data), 0o755); err != nil {
		return nil, err
	}
	return nil, c.cfg.Seed(name, data, peers)
}

// add makes a node's directory and command line.
func (c *Cluster) add(role Role, name, address, admin string, args ...string) error {
	dir := filepath.Join(c.cfg.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	listen := address
	if c.cfg.Listen != nil {
		listen = c.cfg.Listen(name, address)
		if role == Chunkserver {
			args = append(args, "--advertise", address)
		}
	}
	n := &Node{
		Name: name, Role: role, Address: address, Admin: admin, Dir: dir,
		binary: c.cfg.Binary, env: c.cfg.Env, log: filepath.Join(c.cfg.Dir, "log", name+".log"),
		args: append([]string{string(role), "--id", name, "--listen", listen, "--admin-listen", admin,
			"--certs", c.Certs(), "--identity", name, "--mode", c.cfg.Mode}, args...),
	}
	if c.net != nil && c.net.Has(name) {
		n.net = c.net
	}
	c.nodes = append(c.nodes, n)
	return nil
}

// AddMetadata starts one more metadata server, which waits to be added to the
// cluster; via names a running one. It returns when the process runs; the server is
// healthy once it was added.
func (c *Cluster) AddMetadata(name, via string) (*Node, error) {
	if err := addCertificate(c.Certs(), name); err != nil {
		return nil, err
	}
	addrs, err := c.writtenAddresses("addresses-"+name, 2)
	if err != nil {
		return nil, err
	}
	peers := fmt.Sprintf("%s=%s,%s=%s", via, c.Node(via).Address, name, addrs[0])
	args := append(c.metadataArgs(name, peers), "--join")
	if err := c.add(Metadata, name, addrs[0], addrs[1], args...); err != nil {
		return nil, err
	}
	n := c.Node(name)
	return n, n.Start()
}

// ports returns the loopback addresses of all nodes, two for each. They are stored
// in the directory, so that a restarted cluster has the same: the metadata servers
// know each other by address.
func (c *Cluster) ports() ([]string, error) {
	if err := os.MkdirAll(filepath.Join(c.cfg.Dir, "log"), 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(c.cfg.Dir, "addresses")
	want := 2 * (c.cfg.Metadata + c.cfg.Chunkservers)
	if data, err := os.ReadFile(file); err == nil {
		if c.cfg.OwnHosts || c.cfg.Net != nil {
			return nil, fmt.Errorf("%s already holds a cluster, and its servers' hosts are new each time: name another directory", c.cfg.Dir)
		}
		addrs := strings.Fields(string(data))
		if len(addrs) != want {
			return nil, fmt.Errorf("%s already holds a cluster of another size: use the same numbers of servers, or another directory", c.cfg.Dir)
		}
		return addrs, nil
	}
	addrs, err := FreeAddresses(want)
	if err != nil {
		return nil, err
	}
	if err := c.hosts(addrs); err != nil {
		return nil, err
	}
	return addrs, os.WriteFile(file, []byte(strings.Join(addrs, "\n")+"\n"), 0o644)
}

// hosts makes the hosts of the metadata servers, if each needs one. For servers
// with a host it sets the addresses in addrs: those of the service and of the
// metrics.
func (c *Cluster) hosts(addrs []string) (err error) {
	var names []string
	for i := range c.cfg.Metadata {
		names = append(names, fmt.Sprintf("m%d", i+1))
	}
	if c.cfg.OwnHosts {
		if c.net, err = netns.New(names...); err != nil {
			return err
		}
	}
	for i := range c.cfg.Chunkservers {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	for i, name := range names {
		if c.net != nil && c.net.Has(name) {
			addrs[2*i], addrs[2*i+1] = c.net.IP(name)+":7420", c.net.IP(name)+":7421"
		}
	}
	return nil
}

// writtenAddresses returns n loopback addresses stored in a file of the directory,
// like those of the other nodes.
func (c *Cluster) writtenAddresses(name string, n int) ([]string, error) {
	file := filepath.Join(c.cfg.Dir, name)
	data, err := os.ReadFile(file)
	if addrs := strings.Fields(string(data)); err == nil && len(addrs) == n {
		return addrs, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	addrs, err := FreeAddresses(n)
	if err != nil {
		return nil, err
	}
	return addrs, os.WriteFile(file, []byte(strings.Join(addrs, "\n")+"\n"), 0o644)
}

// FreeAddresses finds n free loopback ports. It holds all open together, so that no
// two are the same.
func FreeAddresses(n int) ([]string, error) {
	addrs := make([]string, n)
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs[i] = l.Addr().String()
	}
	return addrs, nil
}

// Dir is the directory of the cluster.
func (c *Cluster) Dir() string { return c.cfg.Dir }

// Certs is the directory of the certificates. It holds one named `admin` for users
// of the cluster.
func (c *Cluster) Certs() string { return c.cfg.CertsDir }

// Mode is the transport mode of all nodes.
func (c *Cluster) Mode() string { return c.cfg.Mode }

// Endpoint is the value for --endpoint.
func (c *Cluster) Endpoint() string {
	var addrs []string
	for _, n := range c.Nodes(Metadata) {
		addrs = append(addrs, n.Address)
	}
	return strings.Join(addrs, ",")
}

// Nodes returns the nodes of a role, in order of name.
func (c *Cluster) Nodes(role Role) []*Node {
	var nodes []*Node
	for _, n := range c.nodes {
		if n.Role == role {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// All returns every node.
func (c *Cluster) All() []*Node { return c.nodes }

// Node returns the node of that name, or nil.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Close ends every process: S3 endpoint first, then chunkservers, so that they
// still reach metadata and the bucket while they end. The data on disk stays.
func (c *Cluster) Close() error {
	var errs []error
	for _, role := range []Role{S3, Chunkserver, ObjectServer, Metadata} {
		var g errgroup.Group
		for _, n := range c.Nodes(role) {
			g.Go(func() error { return n.Stop(stopPatience) })
		}
		errs = append(errs, g.Wait())
	}
	if c.cfg.OwnHosts && c.net != nil {
		errs = append(errs, c.net.Close())
	}
	return errors.Join(append(errs, c.lock.Close())...)
}
