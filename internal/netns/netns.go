// Package netns gives processes hosts of their own on this machine. Each is a
// network namespace, joined by a veth pair to a bridge in a namespace of its own.
// This process is joined to the bridge as well. So a host can vanish while its
// processes run on, as if its cable or switch failed: no connection closes and none
// is refused.
//
// It needs root and the ip command (iproute2), and knows nothing of the processes.
// One path through it: New("m1", "m2") makes the hosts. A process is started with
// Command("m1") in front, and serves at Address("m1"). Down("m1") makes the host
// vanish, Up("m1") restores it, and Close removes everything.
package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrCannot means that namespaces cannot be made here.
var ErrCannot = errors.New("network namespaces need root, and the ip command (iproute2)")

// Net is a network of hosts. Its methods may be called concurrently, except Close.
type Net struct {
	prefix string // of the names of namespaces
	subnet string // first three bytes of the addresses
	hosts  []string
}

// New makes a network of hosts of these names, of at most ten letters. An error is
// ErrCannot if rights or tools are missing. After an error everything is removed
// again.
func New(hosts ...string) (*Net, error) {
	if _, err := exec.LookPath("ip"); err != nil || os.Getuid() != 0 {
		return nil, ErrCannot
	}
	n := &Net{hosts: hosts}
	if err := n.claim(); err != nil {
		return nil, err
	}
	if err := n.lay(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// claim takes the first free name and subnet from this process's own number on. It
// makes the namespace of the bridge, which only one process can make.
func (n *Net) claim() error {
	const subnets = 250
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for i := range subnets {
		at := (os.Getpid() + i) % subnets
		n.prefix, n.subnet = fmt.Sprintf("mrn%d", at), fmt.Sprintf("10.213.%d", at)
		if slices.ContainsFunc(addrs, func(a net.Addr) bool { return strings.HasPrefix(a.String(), n.subnet+".") }) {
			continue
		}
		err := ip("netns", "add", n.hub())
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "File exists") {
			return fmt.Errorf("%w: %w", ErrCannot, err)
		}
	}
	return errors.New("all of 10.213.0.0/16 is in use: remove the namespaces mrn* left by earlier runs (ip netns list)")
}

// lay joins this process and the hosts to the bridge.
func (n *Net) lay() error {
	hub := n.hub()
	cables := [][]string{
		{"-n", hub, "link", "add", "br0", "type", "bridge"},
		{"-n", hub, "link", "set", "br0", "up"},
		{"link", "add", n.prefix + "t", "type", "veth", "peer", "name", "self", "netns", hub},
		{"-n", hub, "link", "set", "self", "master", "br0", "up"},
		{"addr", "add", n.subnet + ".254/24", "dev", n.prefix + "t"},
		{"link", "set", n.prefix + "t", "up"},
	}
	for _, h := range n.hosts {
		ns := n.space(h)
		cables = append(cables,
			[]string{"netns", "add", ns},
			[]string{"-n", hub, "link", "add", h, "type", "veth", "peer", "name", "eth0", "netns", ns},
			[]string{"-n", hub, "link", "set", h, "master", "br0", "up"},
			[]string{"-n", ns, "addr", "add", n.IP(h) + "/24", "dev", "eth0"},
			[]string{"-n", ns, "link", "set", "eth0", "up"},
			[]string{"-n", ns, "link", "set", "lo", "up"})
	}
	for _, args := range cables {
		if err := ip(args...); err != nil {
			return err
		}
	}
	return nil
}

// Close removes the network. The processes on its hosts run on, without a network.
func (n *Net) Close() error {
	_ = ip("link", "del", n.prefix+"t") // missing if New failed before it
	for _, h := range n.hosts {
		_ = ip("netns", "del", n.space(h)) // likewise
	}
	return ip("netns", "del", n.hub())
}

func (n *Net) hub() string              { return n.prefix + "hub" }
func (n *Net) space(host string) string { return n.prefix + host }

// IP returns the address of a host.
func (n *Net) IP(host string) string {
	return fmt.Sprintf("%s.%d", n.subnet, slices.Index(n.hosts, host)+1)
}

// Has reports whether a host of that name exists.
func (n *Net) Has(host string) bool { return slices.Contains(n.hosts, host) }

// Command is the beginning of the command line of a process on a host. It becomes
// the process: its id and signals are the process's own. It shares the mounts of
// this process. "ip netns exec" would copy them, and later mounts of others could
// not end before the process does.
func (n *Net) Command(host string) []string {
	return []string{"nsenter", "--net=/var/run/netns/" + n.space(host), "--"}
}

// Down makes a host vanish: no packet reaches it or comes from it.
func (n *Net) Down(host string) error { return ip("-n", n.hub(), "link", "set", host, "down") }

// Up ends a Down.
func (n *Net) Up(host string) error { return ip("-n", n.hub(), "link", "set", host, "up") }

// Mute makes a host unable to send to the others. It still receives from them, as
// far as that needs no answer, and still answers this process. Unmute ends it.
func (n *Net) Mute(host string) error { return n.blackholes("add", host) }

// Unmute ends a Mute.
func (n *Net) Unmute(host string) error { return n.blackholes("del", host) }

func (n *Net) blackholes(what, host string) error {
	var errs []error
	for _, other := range n.hosts {
		if other != host {
			errs = append(errs, n.blackhole(what, host, other))
		}
	}
	return errors.Join(errs...)
}

func (n *Net) blackhole(what, from, to string) error {
	return ip("-n", n.space(from), "route", what, "blackhole", n.IP(to)+"/32")
}

// Part disconnects two hosts from each other, while all others reach both. Join
// ends it.
func (n *Net) Part(a, b string) error {
	return errors.Join(n.blackhole("add", a, b), n.blackhole("add", b, a))
}

// Join ends a Part.
func (n *Net) Join(a, b string) error {
	return errors.Join(n.blackhole("del", a, b), n.blackhole("del", b, a))
}

// Within calls fn on a thread that is on a host. Sockets that fn opens belong
// to that host for their whole life, wherever they are used.
func (n *Net) Within(host string, fn func() error) error {
	there, err := os.Open("/var/run/netns/" + n.space(host))
	if err != nil {
		return err
	}
	defer there.Close()
	result := make(chan error)
	go func() {
		// The thread is not reused, since it is on the host: it ends with this
		// goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter %s: %w", host, err)
			return
		}
		result <- fn()
	}()
	return <-result
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
