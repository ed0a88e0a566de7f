package transport_test

import (
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine/transport"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// near is a chunkserver with its caller, and the counts of both.
type near struct {
	shelf          *shelf
	server         *transport.Server
	chunks         transport.Chunks
	caller, served *prometheus.Registry
	address        string
}

func newNear(t *testing.T, mode transport.Mode, listen string, shortCircuit bool) *near {
	n, a := network{mode: mode}, newAuthority(t)
	k := &near{shelf: newShelf(), caller: prometheus.NewRegistry(), served: prometheus.NewRegistry()}
	k.server, _ = startServer(t, transport.ServerConfig{Addresses: []string{listen}, Mode: mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1", ShortCircuit: shortCircuit},
		transport.ServerDeps{Handler: transport.HandlerForChunks(k.shelf), Identity: n.identity(t, a, transport.RoleChunkserver, "n1"), Keys: a.keys, Metrics: transport.NewMetrics(k.served)})
	_, port, err := net.SplitHostPort(k.server.Addresses()[0])
	require.NoError(t, err)
	k.address = net.JoinHostPort("127.0.0.1", port)
	// A busy machine must not make a caller abandon the socket.
	pool := n.poolWith(t, a, transport.PoolConfig{Role: transport.RoleClient, Node: "c1", DialTimeout: 20 * time.Second}, transport.NewMetrics(k.caller))
	k.chunks = pool.Chunks("n1", []string{k.address})
	return k
}

// open returns how many connections of reg use network.
func open(t *testing.T, reg *prometheus.Registry, network string) (n int) {
	for name, value := range gathered(t, reg) {
		if strings.HasPrefix(name, "moraine_transport_connections{") && strings.Contains(name, `network="`+network+`"`) {
			n += int(value)
		}
	}
	return n
}

func (k *near) require(t *testing.T, network string) {
	other := map[string]string{"tcp": "unix", "unix": "tcp"}[network]
	for _, reg := range []*prometheus.Registry{k.caller, k.served} {
		require.Positive(t, open(t, reg, network))
		require.Zero(t, open(t, reg, other))
	}
}

// A caller on the host of a chunkserver uses its unix socket, in every mode and
// every notation of the server's address. A chunkserver without one is reached over
// TCP.
func TestShortCircuit(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC, transport.Insecure} {
		for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
			t.Run(string(mode)+"/"+listen, func(t *testing.T) {
				k := newNear(t, mode, listen, true)
				checkChunksOf(t, k.chunks, k.shelf, chunkSizes[:smallSizes])
				k.require(t, "unix")
			})
		}
		t.Run(string(mode)+"/off", func(t *testing.T) {
			k := newNear(t, mode, "127.0.0.1:0", false)
			checkChunksOf(t, k.chunks, k.shelf, chunkSizes[:smallSizes])
			k.require(t, "tcp")
		})
	}
}

// Whatever process took the name of a server's socket, and whatever it answers,
// callers reach the server over TCP.
func TestShortCircuitTakenByAnother(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		for name, answer := range map[string]func(net.Conn){
			"closes":    func(c net.Conn) { c.Close() },
			"is silent": func(net.Conn) {},
			"babbles":   func(c net.Conn) { go io.Copy(c, c) },
		} {
			t.Run(string(mode)+"/"+name, func(t *testing.T) {
				k := newNear(t, mode, "127.0.0.1:0", false)
				l, err := net.Listen("unix", "@moraine/"+k.address)
				require.NoError(t, err)
				defer l.Close()
				asked := make(chan struct{}, 64)
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						t.Cleanup(func() { c.Close() })
						asked <- struct{}{}
						answer(c)
					}
				}()
				checkChunksOf(t, k.chunks, k.shelf, chunkSizes[:smallSizes])
				k.require(t, "tcp")
				require.NotEmpty(t, asked)
			})
		}
	}
}

// Another server of the cluster under the name is not mistaken for the requested
// one.
func TestShortCircuitToAnotherServer(t *testing.T) {
	k := newNear(t, transport.Insecure, "127.0.0.1:0", false)
	other := newShelf()
	startServer(t, transport.ServerConfig{Addresses: []string{"unix:@moraine/" + k.address}, Mode: transport.Insecure, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n2"},
		transport.ServerDeps{Handler: transport.HandlerForChunks(other)})
	checkChunksOf(t, k.chunks, k.shelf, chunkSizes[:smallSizes])
	k.require(t, "tcp")
	require.Empty(t, other.chunks)
}

// A server whose socket name is taken serves over TCP.
func TestShortCircuitNameIsTaken(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	taken, err := net.Listen("unix", "@moraine/"+address)
	require.NoError(t, err)
	defer taken.Close()
	require.NoError(t, free.Close())
	k := newNear(t, transport.CRC, address, true)
	require.NoError(t, taken.Close())
	checkChunksOf(t, k.chunks, k.shelf, chunkSizes[:smallSizes])
	k.require(t, "tcp")
}

// listenAs listens as another user, which the kernel reports to callers.
func listenAs(t *testing.T, uid uintptr, name string) net.Listener {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	const same = ^uintptr(0)
	runtime.LockOSThread() // only the user of this thread changes
	defer runtime.UnlockOSThread()
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uid, same)
	require.Zero(t, errno)
	l, err := net.Listen("unix", name)
	_, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
	require.Zero(t, errno)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// Another user of the host takes the name before the server, and forwards all
// messages of a caller and the server. If it could read payloads that way, callers
// do not use its socket.
func TestShortCircuitIsNotRelayed(t *testing.T) {
	k := newNear(t, transport.CRC, "0.0.0.0:0", true)
	l := listenAs(t, 65534, "@moraine/"+k.address)
	var read atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", k.address)
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				n, _ := io.Copy(server, c)
				read.Add(n)
				server.Close()
			}()
			go func() { io.Copy(c, server); c.Close() }()
		}
	}()
	checkChunksOf(t, k.chunks, k.shelf, chunkSizes[:smallSizes])
	require.Zero(t, read.Load())
	k.require(t, "unix") // the server's own socket, which covers all its addresses
}
