// Package s3test is a real S3-compatible server for tests, in a process of its own,
// and a proxy that loses answers.
//
// One path through it: TestMain calls Main. A test calls Start for the shared
// server, NewProxy in front of it, and Open for a bucket with a prefix of its own.
// Proxy.Set or Proxy.Once injects faults.
package s3test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/tiers/object"
)

const bucketName = "tier"

// Main is for TestMain. In a process that Start started, it serves and does not
// return. Elsewhere it runs the tests, and ends the server that they started.
func Main(m *testing.M) int {
	if serve := childOf(); serve != nil {
		return serve()
	}
	defer shared.stop()
	return m.Run()
}

// Server is a store. It runs except between Kill and Restart.
type Server struct {
	Endpoint string
	Keys     object.Keys

	dir string
	supervisor
}

type sharedServer struct {
	once   sync.Once
	server *Server
	err    error
}

// shared is the one server of a test process.
var shared sharedServer

// Start returns the store of this test process; the first call starts it.
func Start(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = start() })
	require.NoError(t, shared.err)
	return shared.server
}

// New starts a store only for this test, which may kill it. The store ends with the
// test.
func New(t testing.TB) *Server {
	t.Helper()
	s, err := start()
	require.NoError(t, err)
	t.Cleanup(s.stop)
	return s
}

func start() (s *Server, err error) {
	for range 5 { // another process may take the port before we use it
		if s, err = startOnce(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func startOnce() (*Server, error) {
	dir, err := os.MkdirTemp("", "moraine-s3test-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	s := &Server{Endpoint: "http://" + addr, dir: dir}
	if err := s.supervisor.begin(dir, addr); err != nil {
		return nil, err
	}
	if err := s.order(orderStart); err != nil {
		s.stop()
		return nil, err
	}
	s.Keys, err = object.LoadKeys(filepath.Join(dir, "keys"))
	return s, err
}

// Kill ends the server's process like kill -9. It may be called while a file system
// that this process serves is mounted.
func (s *Server) Kill() error { return s.order(orderKill) }

// Restart starts a killed server again at the same address, and returns when it
// serves.
func (s *Server) Restart() error {
	var err error
	for range 5 { // another process may briefly use the port
		if err = s.order(orderStart); err == nil {
			return nil
		}
	}
	return err
}

func (s *Server) stop() {
	s.supervisor.end()
	os.RemoveAll(s.dir)
}

// stop ends the shared server, if there is one.
func (s *sharedServer) stop() {
	if s.server != nil {
		s.server.stop()
	}
}

// Config is the config of a client of the store, with a key prefix of the test's
// own. endpoint is that of the server, or of a proxy in front of it.
func (s *Server) Config(t testing.TB, endpoint string) object.Config {
	return object.Config{Bucket: bucketName, Prefix: prefixOf(t), Endpoint: endpoint, AccessKey: s.Keys.Access, SecretKey: s.Keys.Secret}
}

func prefixOf(t testing.TB) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '%' || r == '\\' {
			return '-'
		}
		return r
	}, t.Name())
}

// Open returns a bucket with a prefix of the test's own.
func (s *Server) Open(t testing.TB, endpoint string) *object.Bucket {
	t.Helper()
	b, err := object.New(s.Config(t, endpoint), object.Deps{})
	require.NoError(t, err)
	return b
}
